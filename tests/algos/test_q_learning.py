"""Targets and losses of Q-learning and SAC, and n-step sums: hand values."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from penstock.algos.off_policy import DQN, SAC
from penstock.algos.q_learning import n_step_sums, q_loss, q_target, quantile_loss, quantile_target, soft_losses, soft_target
from penstock.core.contracts import Denominator
from penstock.core.errors import TrainingError


def column(*numbers: float) -> np.ndarray:
    return np.array(numbers)[:, None]


def test_sums_of_three_rewards_end_with_the_episode_and_with_the_fragment_by_hand() -> None:
    """Discount 1/2; the episode is over after the second step, the fragment after the fifth."""
    last = column(0, 1, 0, 0, 1).astype(bool)
    sums, spans = n_step_sums(column(1, 2, 4, 8, 16), last, 0.5, 3)
    assert sums.ravel().tolist() == [1 + 1, 2, 4 + 4 + 4, 8 + 8, 16]
    assert spans.ravel().tolist() == [2, 1, 3, 2, 1]


@given(st.integers(1, 6), st.lists(st.booleans(), min_size=1, max_size=8), st.integers(0, 2**31))
def test_n_step_sums_are_those_of_the_definition(steps: int, ends: list[bool], seed: int) -> None:
    last, reward = column(*ends[:-1], 1).astype(bool), np.random.default_rng(seed).normal(size=(len(ends), 1))
    sums, spans = n_step_sums(reward, last, 0.9, steps)
    for at in range(len(ends)):
        until = at
        while until - at + 1 < steps and not last[until, 0]:
            until += 1
        assert spans[at, 0] == until - at + 1
        assert sums[at, 0] == pytest.approx(sum(0.9**k * reward[at + k, 0] for k in range(until - at + 1)))


def test_n_step_sums_refuse_a_fragment_without_an_end() -> None:
    with pytest.raises(TrainingError, match="n-step sums"):
        n_step_sums(column(1, 2), column(0, 0).astype(bool), 0.9, 2)


def test_the_double_target_values_the_option_that_the_trained_network_chooses_by_hand() -> None:
    """Trained: option 1; slow: 5 for it, 7 for option 0. The second transition ended its episode."""
    found = torch.tensor([[1.0, 2.0], [1.0, 2.0]]), torch.tensor([[7.0, 5.0], [7.0, 5.0]])
    given = torch.tensor([1.0, 1.0]), torch.tensor([0.5, 0.0])
    assert q_target(*given, *found, double=True).tolist() == [3.5, 1.0]
    assert q_target(*given, *found, double=False).tolist() == [4.5, 1.0]


def test_the_q_loss_is_half_a_square_up_to_1_and_linear_beyond_by_hand() -> None:
    q = torch.tensor([0.5, 3.0, math.nan], requires_grad=True)
    loss = q_loss(q, torch.zeros(3), torch.tensor([1.0, 2.0, 0.0]), denominator=2)
    loss.backward()
    assert loss.item() == pytest.approx((0.125 + 2 * 2.5) / 2)
    assert q.grad.tolist() == [0.25, 1.0, 0.0]


def test_the_quantile_target_is_of_the_option_with_the_largest_value_by_hand() -> None:
    """Option 1 is chosen: 1 + 0.5 · (4, 8); the second transition ended its episode."""
    slow = torch.tensor([[[0.0, 1.0], [4.0, 8.0]]]).expand(2, -1, -1)
    found = quantile_target(torch.tensor([1.0, 1.0]), torch.tensor([0.5, 0.0]), torch.tensor([[1.0, 2.0], [1.0, 2.0]]), slow)
    assert found.tolist() == [[3.0, 5.0], [1.0, 1.0]]


def test_the_quantile_loss_by_hand() -> None:
    """Quantiles 0 (τ = 1/4) and 1 (τ = 3/4) against targets 0.5 and 3.

    u = 0.5, 3 of the first: huber 0.125 and 2.5, each times 1/4; u = -0.5, 2 of the second: 0.125 / 4 and 1.5 times 3/4."""
    quantile = torch.tensor([[0.0, 1.0], [math.nan, 0.0]], requires_grad=True)
    target = torch.tensor([[0.5, 3.0], [0.0, 0.0]])
    loss = quantile_loss(quantile, target, torch.tensor([2.0, 0.0]), denominator=4)
    loss.backward()
    first, second = (0.25 * 0.125 + 0.25 * 2.5) / 2, (0.25 * 0.125 + 0.75 * 1.5) / 2
    assert loss.item() == pytest.approx(2 * (first + second) / 4)
    assert quantile.grad[0].tolist() == pytest.approx([-0.5 * (0.25 * 0.5 + 0.25) / 2, -0.5 * (0.25 * -0.5 + 0.75) / 2])
    assert quantile.grad[1].tolist() == [0.0, 0.0]


def test_the_soft_target_by_hand() -> None:
    """1 + 0.5 (min(4, 3) + 0.2 · 2)."""
    both = torch.tensor([[4.0, 3.0]])
    found = soft_target(torch.tensor([1.0]), torch.tensor([0.5]), both, torch.tensor([-2.0]), torch.tensor(0.2))
    assert found.item() == pytest.approx(1 + 0.5 * 3.4)


def test_the_losses_of_sac_by_hand_and_what_they_move() -> None:
    q, logp = torch.tensor([[1.0, 2.0]], requires_grad=True), torch.tensor([-1.5], requires_grad=True)
    policy_q, log_temperature = torch.tensor([[4.0, 3.0]], requires_grad=True), torch.tensor(math.log(0.5), requires_grad=True)
    critic, actor, temperature = soft_losses(q, torch.tensor([3.0]), policy_q, logp, log_temperature, entropy=1.0)
    assert critic.item() == pytest.approx(0.5 * (4 + 1))
    assert actor.item() == pytest.approx(0.5 * -1.5 - 3)
    assert temperature.item() == pytest.approx(-math.log(0.5) * (-1.5 + 1.0))
    (critic + actor + temperature).sum().backward()
    assert q.grad.tolist() == [[-2.0, -1.0]]
    assert policy_q.grad.tolist() == [[0.0, -1.0]]
    assert logp.grad.item() == pytest.approx(0.5)
    assert log_temperature.grad.item() == pytest.approx(0.5)  # the entropy, 1.5, is above 1: the temperature falls


@pytest.mark.parametrize("algorithm", [DQN(), SAC()])
def test_shares_of_micro_batches_add_up(algorithm: DQN | SAC) -> None:
    generator = torch.Generator().manual_seed(0)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    outputs = {"policy/q": numbers(6, 2), "policy/logp": numbers(6)}
    outputs["q"] = numbers(6) if isinstance(algorithm, DQN) else numbers(6, 2)
    fields, fixed = {"target": numbers(6), "weight": numbers(6).abs()}, {"policy/numbers": 2, "log_temperature": numbers(1)[0]}

    def part(chosen: slice) -> torch.Tensor:
        taken = {name: value[chosen] for name, value in outputs.items()}
        own = {name: value[chosen] for name, value in fields.items()}
        return algorithm.compute_loss(taken | fixed, own, None, Denominator(6, 1, 1))[0]

    assert torch.allclose(part(slice(0, 6)), part(slice(0, 2)) + part(slice(2, 6)), atol=1e-6)
