"""AWAC: returns, weights and loss by hand, and what a stage of it needs."""

import math

import pytest
import torch
from algo_examples import Letters

from penstock.algos import AWAC
from penstock.config.run import DataSpec, LearnerSpec, ModelSpec, Offline
from penstock.core.contracts import Denominator
from penstock.core.errors import DataError, SpecError


def example(reward):
    return {"prompt": "a", "completion": "bc", "reward": reward}


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


def test_a_missing_reward_is_refused():
    with pytest.raises(DataError, match="reward"):
        AWAC().rows({"prompt": "a", "completion": "b"}, Letters())


def test_a_stage_that_needs_a_critic_is_refused_without_one():
    given = {"name": "awac", "model": ModelSpec(), "data": DataSpec(source="x.jsonl"), "algorithm": AWAC()}
    with pytest.raises(SpecError, match="needs a critic"):
        Offline(**given)
    assert Offline(**given, learner=LearnerSpec(critic="shared")).learner.critic == "shared"
