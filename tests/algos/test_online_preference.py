"""Online DPO and Safe RLHF: which samples become pairs, and how the price of a cost moves."""

import math
from dataclasses import replace

import numpy as np
import pytest
from algo_examples import evaluated, group, sample

from penstock.algos import DPO, PPO, OnlineDPO, SafePPO, SimPO
from penstock.algos.advantages import generalised_advantages
from penstock.algos.labels import label_metrics
from penstock.algos.safe_ppo import mixed
from penstock.core.errors import TrainingError


def columns_of(groups, value=-1.0):
    column = [[np.full(int(s.action_T.sum()), value, np.float32) for s in g.samples] for g in groups]
    return {"reference": column, "value": column}


def label(algorithm, *groups):
    return algorithm.label(groups, columns_of(groups), algorithm.initial_coefficients())


def test_the_best_and_the_worst_sample_are_the_pair():
    (unit,) = label(OnlineDPO(), group(sample([2, 6], 0.5), sample([3, 6], 2.0), sample([4, 6], -1.0)))
    assert [row.tokens_T.tolist() for row in unit] == [[1, 3, 6], [1, 4, 6]]
    assert [row.fields["preferred"] for row in unit] == [1.0, 0.0]
    assert [row.fields["reward"] for row in unit] == [2.0, -1.0]


def test_a_tie_teaches_nothing():
    tied = group(sample([2], 1.0), sample([3], 1.0))
    assert label(OnlineDPO(), tied) == []
    assert not OnlineDPO().has_signal(tied)


def test_a_sample_that_failed_is_never_the_worst():
    (unit,) = label(OnlineDPO(), group(sample([2], 1.0), sample([3], 0.5), sample([4], -9.0, error="boom")))
    assert unit[1].tokens_T.tolist() == [1, 3]
    assert label(OnlineDPO(), group(sample([2], 1.0), sample([4], None))) == []


def test_the_loss_is_that_of_dpo_on_the_pair():
    algorithm = OnlineDPO(preference=DPO(beta=0.5))
    units = label(algorithm, group(sample([2, 6], 0.0), sample([3], 1.0)))
    loss, metrics = evaluated(algorithm, units, logp=[0.0, -1.5, -1.5])  # log-ratios 1 and -1
    assert loss.item() == pytest.approx(math.log1p(math.exp(-1)))
    assert metrics["pair/accuracy"].item() == 1.0


def test_pairs_without_a_reference_need_none():
    assert OnlineDPO().needs == {"reference"}
    assert OnlineDPO(preference=SimPO()).needs == frozenset()
    assert "reference_logp" not in label(OnlineDPO(preference=SimPO()), group(sample([2], 0.0), sample([3], 1.0)))[0][0].fields


def costly(actions, reward, cost):
    return replace(sample(actions, reward), extras={"rewards": {"help": reward, "cost": cost}})


def test_reward_and_cost_are_mixed_under_the_price():
    assert mixed(np.array([2.0]), np.array([1.0]), 3.0).tolist() == [-0.25]  # (2 - 3) / 4


def test_the_advantage_of_the_mixture_is_the_mixture_of_advantages():
    rng = np.random.default_rng(0)
    reward, cost, value, cost_value = rng.normal(size=(4, 5))
    of_mixture, _ = generalised_advantages(mixed(reward, cost, 1.7), mixed(value, cost_value, 1.7), 0.99, 0.95)
    of_reward, _ = generalised_advantages(reward, value, 0.99, 0.95)
    of_cost, _ = generalised_advantages(cost, cost_value, 0.99, 0.95)
    np.testing.assert_allclose(of_mixture, (of_reward - 1.7 * of_cost) / 2.7)


def test_a_cost_lowers_the_return_by_its_price():
    algorithm = SafePPO(multiplier=3.0, lam=1.0, whiten=False)
    ((row, other),) = label(algorithm, group(costly([2, 6], 2.0, 1.0), costly([3, 6], 2.0, -1.0)))
    assert row.fields["return"].tolist() == pytest.approx([-0.25] * 2)
    assert other.fields["return"].tolist() == pytest.approx([1.25] * 2)


def test_at_a_vanishing_price_it_is_ppo():
    groups = [group(costly([2, 6], 2.0, 1.0), costly([3, 6], 0.5, 5.0))]
    safe, plain_ppo = label(SafePPO(multiplier=1e-9), *groups), label(PPO(), *groups)
    for ours, theirs in zip(safe[0], plain_ppo[0], strict=True):
        np.testing.assert_allclose(ours.fields["advantage"], theirs.fields["advantage"], atol=1e-6)


@pytest.mark.parametrize(
    ("cost", "following"), [(0.5, 2 * math.exp(0.1 * 2 * 0.5)), (-0.5, 2 * math.exp(-0.1 * 2 * 0.5)), (0.0, 2.0), (1e9, 10.0)]
)
def test_the_price_rises_with_costs_above_the_limit_and_falls_below(cost, following):
    moved = SafePPO().adapt({"multiplier": 2.0}, {"cost/mean": cost})
    assert moved["multiplier"] == pytest.approx(following)


def test_a_batch_without_labelled_samples_leaves_the_price_alone():
    assert SafePPO().adapt({"multiplier": 2.0}, {})["multiplier"] == 2.0


def test_the_price_is_moved_by_the_mean_cost_of_samples_that_are_trained_on():
    failed = replace(costly([4], 0.0, 100.0), error="boom")
    units = label(SafePPO(), group(costly([2], 0.0, 1.0), costly([3], 0.0, 2.0), failed))
    metrics = label_metrics(units)
    assert metrics["cost/mean"] == pytest.approx(1.5)
    assert metrics["cost/multiplier"] == 1.0


def test_a_sample_without_a_cost_is_named():
    with pytest.raises(TrainingError, match='no reward called "cost" scored it'):
        label(SafePPO(), group(sample([2], 1.0), sample([3], 0.0)))
