"""Curiosity: what is new is rewarded, what was seen is not any more, and a checkpoint keeps both networks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("gymnasium")

from stage_examples import a_stage, launched, reported

from penstock.algos.off_policy import DQN
from penstock.control.fragments import Ends, Fragment
from penstock.control.novelty import Novelty
from penstock.control.stage import Curiosity
from penstock.core.errors import SpecError
from penstock.models.control_networks import Shape


def fragment(shown_TN: Any, end: tuple[int, float] | None = None, last: float = 0.0) -> Fragment:
    """One environment that shows one number; an episode that ends in a step with another number, or goes on to ``last``."""
    observation_TNF = np.asarray(shown_TN, np.float32)[:, None, None]
    grid = observation_TNF.shape[:2]
    ends = [(grid[0] - 1, False, last)] if end is None else [(end[0], True, end[1]), (grid[0] - 1, False, last)]
    start_TN = np.zeros(grid, bool)
    if end is not None:
        start_TN[end[0] + 1] = True
    return Fragment(
        observation_TNF=observation_TNF,
        decision_TND=np.zeros((*grid, 1), np.int64),
        logp_TN=np.zeros(grid, np.float32),
        value_TN=np.zeros(grid, np.float32),
        version_TN=np.zeros(grid, np.int32),
        reward_TN=np.full(grid, 10.0, np.float32),
        start_TN=start_TN,
        acted_TN=np.ones(grid, bool),
        state_NS=np.zeros((1, 0), np.float32),
        ends=Ends(
            step_K=np.array([step for step, _, _ in ends], np.int32),
            environment_K=np.zeros(len(ends), np.int32),
            terminated_K=np.array([over for _, over, _ in ends]),
            truncated_K=np.zeros(len(ends), bool),
            observation_KF=np.array([[shown] for _, _, shown in ends], np.float32),
            state_KS=np.zeros((len(ends), 0), np.float32),
        ),
        following_K=np.zeros(len(ends), np.float32),
    )


def made(seed: int = 0, **fields: Any) -> Novelty:
    return Novelty(Curiosity(**fields), Shape(1, (2,), hidden=(4,)), 0.9, seed, "cpu")


def errors(novelty: Novelty, *shown: float) -> list[float]:
    found: list[float] = novelty._errors(np.array(shown, np.float32)[:, None]).tolist()
    return found


def test_a_step_is_rewarded_for_where_it_led_an_end_included() -> None:
    """Shown 0, 1, 2 | 3, 4: step 1 ends an episode at 9, step 4 goes on to 5. So the steps led to 1, 9, 3, 4, 5... of shown
    [0, 1, 2, 3]: 1, 9 (the end), 3, 5."""
    novelty = made(coefficient=2.0)
    led = np.array(errors(novelty, 1, 9, 3, 5))
    returns = [led[0], led[1] + 0.9 * led[0], led[2], led[3] + 0.9 * led[2]]
    found = novelty.rewarded(fragment([0, 1, 2, 3], end=(1, 9.0), last=5.0))
    assert found.reward_TN[:, 0] == pytest.approx(10 + 2 * led / np.std(returns), rel=1e-4)


def test_what_was_learned_is_no_longer_new_and_what_was_not_is() -> None:
    novelty = made(learning_rate=1e-2)
    seen = fragment(np.linspace(-1, 1, 64))
    novelty.learn(seen)  # which sets the moments, so that errors before and after are of the same numbers
    before = errors(novelty, 0.5, 6.0)
    for _ in range(200):
        novelty.learn(seen)
    after = errors(novelty, 0.5, 6.0)
    assert after[0] < 0.05 * before[0]
    assert after[1] > 10 * after[0]


def test_the_fixed_network_is_a_function_of_the_seed_and_stays() -> None:
    one, other = made(3), made(3)
    kept = {name: tensor.clone() for name, tensor in one.target.state_dict().items()}
    one.learn(fragment([0.0, 1.0]))
    assert all(torch.equal(tensor, kept[name]) for name, tensor in one.target.state_dict().items())
    assert all(torch.equal(tensor, kept[name]) for name, tensor in other.target.state_dict().items())


def test_a_checkpoint_goes_on_as_if_nothing_had_happened() -> None:
    one, other = made(0), made(1)
    for number in range(3):
        one.learn(one.rewarded(fragment([number, 1.0, 2.0])))
    other.load_state(one.state())
    for number in range(3):
        first, second = (each.rewarded(fragment([number, 3.0, 2.0])) for each in (one, other))
        assert first.reward_TN.tolist() == second.reward_TN.tolist()
        assert one.learn(first) == other.learn(second)


def test_a_stage_reports_returns_without_it(tmp_path: Path) -> None:
    """CartPole's return is its length, whatever else is rewarded."""
    stage = a_stage(curiosity=Curiosity(width=8), fragment=16, steps=3, evaluation=None)
    result = launched(stage, tmp_path)
    assert reported(result)
    assert reported(result) == reported(result, "episode/length")
    assert all(error > 0 for error in reported(result, "novelty/error"))


def test_it_is_refused_where_transitions_are_replayed() -> None:
    with pytest.raises(SpecError, match="curiosity"):
        a_stage(algorithm=DQN(), curiosity=Curiosity())
