"""AWAC: returns, weights and loss by hand, invariance, and what a stage of it needs."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from algo_examples import Letters, Table, count
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.algos import AWAC
from penstock.config.run import DataSpec, LearnerSpec, ModelSpec, Offline
from penstock.core.contracts import Denominator
from penstock.core.errors import DataError, SpecError


def example(reward, completion="bc", prompt="a"):
    return {"prompt": prompt, "completion": completion, "reward": reward}


def units_of(algorithm, seed):
    rng = np.random.default_rng(seed)
    words = ["".join(rng.choice(list("abcde"), rng.integers(1, 5))) for _ in range(5)]
    return [algorithm.rows(example(float(rng.normal()), word), Letters()) for word in words]


def test_returns_by_hand():
    (row,) = AWAC(discount=0.5).rows(example(1.0), Letters())
    assert row.action_T.tolist() == [False, True, True, True]
    assert row.fields["return"].tolist() == [0.25, 0.5, 1.0]


def test_rewards_a_token_add_up_to_returns():
    (row,) = AWAC().rows(example([1.0, 2.0, 3.0]), Letters())
    assert row.fields["return"].tolist() == [6.0, 5.0, 3.0]


def by_hand(**fields):
    outputs = {"logp": torch.tensor([-1.0, -2.0]), "value": torch.tensor([0.0, 2.0]).requires_grad_()}
    given_A = {"weight": torch.ones(2), "return": torch.tensor([1.0, 1.0])}
    loss, metrics = AWAC(**fields).loss()(outputs, given_A, None, Denominator(tokens=2, rows=1, units=1))
    return loss, metrics, outputs


def test_the_loss_by_hand():
    loss, metrics, _ = by_hand(temperature=2.0, value_coefficient=0.1)
    imitation = (math.exp(0.5) * 1 + math.exp(-0.5) * 2) / 2
    assert metrics["imitation/loss"].item() == pytest.approx(imitation)
    assert metrics["value/loss"].item() == pytest.approx(0.5)  # 0.5 · (1 + 1) / 2
    assert loss.item() == pytest.approx(imitation + 0.05)


def test_the_value_learns_from_its_own_loss_alone():
    loss, _, outputs = by_hand(value_coefficient=1.0)
    loss.backward()
    assert outputs["value"].grad.tolist() == pytest.approx([-0.5, 0.5])  # (V - R) / 2


def test_without_a_baseline_rewards_are_the_advantages():
    loss, metrics, _ = by_hand(baseline="none")
    assert loss.item() == pytest.approx(math.e * 3 / 2)
    assert "value/loss" not in metrics
    assert AWAC(baseline="none").loss().needs == {"logp"}
    assert AWAC().loss().needs == {"logp", "value"}


def test_a_huge_advantage_is_bounded():
    _, metrics, _ = by_hand(temperature=1e-3)
    assert metrics["imitation/weight"].item() == pytest.approx(10.0)  # 20 at most, and about 0


@settings(max_examples=15)
@given(seed=st.integers(0, 1000), cuts=st.sets(st.integers(1, 4)))
def test_any_split_into_micro_batches_or_ranks_gives_the_same_loss_and_gradient(seed, cuts):
    algorithm = AWAC(temperature=0.5)
    units, model = units_of(algorithm, seed), Table(seed)
    pieces = [units[a:b] for a, b in pairwise([0, *sorted(cuts), len(units)])]
    whole, whole_metrics, whole_grad = model.accumulate(algorithm.loss(), [units], count(units))
    total, metrics, grad = model.accumulate(algorithm.loss(), pieces, count(units))
    assert total == pytest.approx(whole, abs=1e-6)
    assert metrics == pytest.approx(whole_metrics, abs=1e-6)
    torch.testing.assert_close(grad, whole_grad, atol=1e-6, rtol=1e-6)


@settings(max_examples=10)
@given(order=st.permutations(range(5)))
def test_the_order_of_rows_does_not_matter(order):
    units, model = units_of(AWAC(), 0), Table()
    whole, _, whole_grad = model.accumulate(AWAC().loss(), [units], count(units))
    total, _, grad = model.accumulate(AWAC().loss(), [units], count(units), order)
    assert total == pytest.approx(whole, abs=1e-9)
    torch.testing.assert_close(grad, whole_grad, atol=1e-9, rtol=1e-9)


def test_a_missing_reward_is_refused():
    with pytest.raises(DataError, match="reward"):
        AWAC().rows({"prompt": "a", "completion": "b"}, Letters())


@pytest.mark.parametrize("fields", [{"temperature": 0.0}, {"discount": 1.5}, {"value_coefficient": -1.0}])
def test_impossible_fields_are_refused(fields):
    with pytest.raises(SpecError):
        AWAC(**fields)


def test_a_stage_that_needs_a_critic_is_refused_without_one():
    given = {"name": "awac", "model": ModelSpec(), "data": DataSpec(source="x.jsonl"), "algorithm": AWAC()}
    with pytest.raises(SpecError, match="needs a critic"):
        Offline(**given)
    assert Offline(**given, learner=LearnerSpec(critic="shared")).learner.critic == "shared"
