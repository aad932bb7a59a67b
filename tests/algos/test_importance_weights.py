"""Importance weights by hand, alone and together, and that no split of a batch can change them."""

import numpy as np
import pytest
from algo_examples import group, sample
from hypothesis import given
from hypothesis import strategies as st

from penstock.algos import GRPO, ImportanceWeight, label_metrics
from penstock.algos.importance_weights import importance_weights, ratios
from penstock.core.errors import TrainingError

LN2 = np.log(2)
BEHAVIOUR = np.array([-1.0, -1.0, -1.0])
PROXIMAL = BEHAVIOUR + np.array([2 * LN2, 0.0, -LN2])  # ratios 4, 1, 1/2: product 2, geometric mean 2^(1/3)


@pytest.mark.parametrize(
    ("level", "expected"), [("token", [4, 1, 0.5]), ("sequence", [2, 2, 2]), ("geometric", [2 ** (1 / 3)] * 3)]
)
def test_ratios_by_hand(level, expected):
    np.testing.assert_allclose(ratios(PROXIMAL, BEHAVIOUR, level), expected)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (ImportanceWeight(high=2.0), [2, 1, 0.5]),  # truncated at tokens
        (ImportanceWeight(high=5.0), [4, 1, 0.5]),  # PipelineRL's bound
        (ImportanceWeight(level="sequence", high=1.5), [1.5, 1.5, 1.5]),
        (ImportanceWeight(outside="mask", high=2.0), [0, 1, 0.5]),  # masked at tokens
        (ImportanceWeight(outside="mask", low=0.6, high=5.0), [4, 1, 0]),  # IcePop's band
        (ImportanceWeight(level="sequence", outside="mask", high=1.5), [0, 0, 0]),
        (ImportanceWeight(level="geometric", outside="reject", low=0.99, high=1.01), [0, 0, 0]),
        (ImportanceWeight(level="geometric", outside="reject", low=0.5, high=2.0), [1, 1, 1]),
        (ImportanceWeight(high=1e9), [4, 1, 0.5]),  # decoupled PPO
    ],
)
def test_weights_by_hand(rule, expected):
    np.testing.assert_allclose(rule.weights(PROXIMAL, BEHAVIOUR), expected)


def test_weights_multiply():
    rules = (ImportanceWeight(high=2.0), ImportanceWeight(outside="reject", low=0.6, high=9.0))
    np.testing.assert_allclose(importance_weights(rules, PROXIMAL, BEHAVIOUR), [2, 1, 0])


@given(st.lists(st.floats(-5, 0), min_size=1, max_size=6), st.sampled_from(["token", "sequence", "geometric"]))
def test_samples_of_the_same_policy_weigh_1(logp, level):
    rule = ImportanceWeight(level=level, outside="mask", low=0.5)
    np.testing.assert_array_equal(rule.weights(logp, logp), np.ones(len(logp)))


def test_the_expected_weight_of_the_behaviour_policy_is_1():
    behaviour, proximal = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.2, 0.6])
    weight = [ratios([np.log(p)], [np.log(b)], "token")[0] for p, b in zip(proximal, behaviour, strict=True)]
    assert (behaviour * weight).sum() == pytest.approx(1.0)


def test_a_wild_ratio_stays_finite():
    assert np.isfinite(ratios([-1.0] * 9, [-900.0] * 9, "sequence")).all()


@pytest.mark.parametrize(("proximal", "problem"), [([-1.0], "do not go together"), ([-1.0, np.nan], "finite")])
def test_log_probs_that_cannot_be_compared_are_refused(proximal, problem):
    with pytest.raises(TrainingError, match=problem):
        ratios(proximal, [-1.0, -1.0], "token")


def labelled(rules, gap=LN2):
    members = group(sample([2, 3], 1.0), sample([4], 0.0))
    proximal = [[(s.logp_T[s.action_T] + gap).astype(np.float32) for s in members.samples]]
    algorithm = GRPO(importance_weights=rules)
    return algorithm.label([members], {"proximal": proximal}, algorithm.initial_coefficients())


def test_rows_carry_their_weights_and_the_log_probs_the_ratio_starts_from():
    ((first, second),) = labelled((ImportanceWeight(high=1.5),))
    np.testing.assert_allclose(first.fields["importance_weight"], [1.5, 1.5])
    np.testing.assert_allclose(second.fields["proximal_logp"], [-1 + LN2], rtol=1e-6)
    np.testing.assert_allclose(second.fields["old_logp"], [-1])


def test_metrics_tell_how_far_the_generator_is_and_what_was_silenced():
    metrics = label_metrics(labelled((ImportanceWeight(outside="mask", high=1.5),)))
    assert (metrics["importance/mean"], metrics["importance/silenced"]) == (0.0, 1.0)
    assert metrics["kl/behaviour"] == pytest.approx(2 - 1 - LN2, rel=1e-5)  # ratio - 1 - ln ratio


def test_a_correction_without_the_learner_s_log_probs_is_refused():
    algorithm = GRPO(importance_weights=(ImportanceWeight(),))
    with pytest.raises(TrainingError, match='"proximal" column, which was not filled'):
        algorithm.label([group(sample([2], 1.0), sample([3], 0.0))], {}, algorithm.initial_coefficients())
