"""Drift, groups, length and hacking by hand values."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.feedback.errors import FeedbackError
from penstock.feedback.judgements import Unit
from penstock.feedback.quality.drift import (
    Drift,
    JudgedPair,
    accuracy,
    agreement,
    anchor_change,
    by_group,
    cusum,
    diverged,
    length_bias,
    preferred,
    time_weights,
)
from penstock.feedback.quality.reliability import Share
from penstock.feedback.quality.true_share import true_share

SURELY = Share(7 * 10**9, 10**10)
"""An accuracy of 0.7 without an error to speak of."""


def judged(log_odds, margin, lengths=(10, 10), **groups):
    return JudgedPair(log_odds, margin, lengths, groups)


def test_the_cumulative_sum_by_hand():
    # The sums are 0, 0.6, 1.2, 0.8 and 1.4.
    found = {limit: cusum([1, 0, 0, 1, 0], SURELY, 0.1, limit) for limit in (0.59, 0.61, 1.19, 1.21, 1.41)}
    assert {limit: drift.alarm for limit, drift in found.items()} == {0.59: 1, 0.61: 2, 1.19: 2, 1.21: 4, 1.41: None}
    assert found[1.41].total == pytest.approx(1.4, abs=1e-4)


def test_drift_goes_on_where_the_round_before_ended_and_lasts_until_accuracy_is_back():
    whole = cusum([1, 0, 0, 1, 0, 1], SURELY, 0.1, 1.3)
    first = cusum([1, 0, 0], SURELY, 0.1, 1.3)
    second = cusum([1, 0, 1], SURELY, 0.1, 1.3, first.total)
    assert (second.total, second.alarm) == (pytest.approx(whole.total), 1)
    assert cusum([0], SURELY, 0.1, 1.3, 1.3).alarm == 0
    assert cusum([1, 1, 1, 1], SURELY, 0.1, 1.3, 1.3) == Drift(0.0, None)


def test_an_accuracy_of_few_pairs_is_expected_with_its_error():
    # (7 + 1) / (10 + 2) = 2/3, so the standard error is √(2/9 / 10) = 0.149; the sum after one miss is 0.7 - 0.149 - 0.05.
    assert cusum([0], Share(7, 10)).total == pytest.approx(0.7 - (2 / 90) ** 0.5 - 0.05)


@pytest.mark.parametrize(("pairs", "most"), [(40, 0.10), (100, 0.07), (200, 0.05)])
def test_false_alarms_are_as_few_as_is_said(pairs, most):
    draw = np.random.Generator(np.random.Philox(pairs))
    found = [cusum(draw.random(300) < 0.7, Share(int(draw.binomial(pairs, 0.7)), pairs)) for _ in range(600)]
    assert np.mean([drift.alarm is not None for drift in found]) < most


def test_a_model_whose_accuracy_fell_alarms():
    draw = np.random.Generator(np.random.Philox(0))
    fallen = [cusum(draw.random(300) < 0.5, Share(140, 200)).alarm for _ in range(200)]
    assert all(alarm is not None for alarm in fallen)
    assert np.median([alarm for alarm in fallen if alarm is not None]) < 90


def units(*signs):
    return {Unit(f"anchor {number}", "first", "second"): list(said) for number, said in enumerate(signs)}


def test_anchors_that_turn_are_no_luck_and_equal_ones_are():
    turned = anchor_change(units(*[[1, 1, 1]] * 8), units(*[[-1, -1, -1]] * 8))
    same = anchor_change(units([1, -1], [1, 1]), units([-1, 1], [1, 1]))
    assert (turned.anchors, turned.change) == (8, 1.0)
    assert turned.chance < 0.01
    assert (same.change, same.chance) == (0.0, 1.0)


def test_rounds_without_a_common_anchor_are_refused():
    with pytest.raises(FeedbackError, match="share no anchor"):
        anchor_change(units([1]), {})


def test_groups_are_counted_apart():
    pairs = [judged(1, 2.0, language="fr"), judged(1, -1.0, language="fr"), judged(-1, -1.0, language="de"), judged(1, 1.0)]
    assert agreement(pairs) == Share(3, 4)
    assert by_group(pairs, "language") == {"de": [pairs[2]], "fr": pairs[:2]}


def test_accuracy_and_preference_weigh_each_pair_by_its_votes():
    pairs = [judged(2.0, 1.0), judged(-0.5, 1.0), judged(1.0, -3.0)]
    assert accuracy(pairs) == true_share([2.0, -0.5, -1.0])
    assert preferred(pairs) == true_share([2.0, -0.5, 1.0])


def test_a_model_without_an_opinion_is_neither_right_nor_wrong():
    assert accuracy([judged(2.0, 0.0), judged(1.0, 1.0)]) == true_share([1.0])


def test_length_bias_by_hand():
    pairs = [
        judged(1, 1.0, (200, 100)),  # both prefer the longer one
        judged(-1, 1.0, (200, 100)),  # people the shorter one, the model the longer one
        judged(-1, -1.0, (200, 100)),  # both the shorter one
        judged(1, -1.0, (100, 100)),  # equal lengths
    ]
    found = length_bias(pairs)
    assert (found.people, found.model) == (true_share([1, -1, -1]), Share(2, 3))
    assert found.matched == true_share([-1])


@pytest.mark.parametrize(
    ("proxy", "gold", "hacked"),
    [
        ([0, 1, 2, 3], [3, 2, 1, 0], True),
        ([0, 1, 2, 3], [3, 2, 2, 0], False),
        ([0, 1, 2, 2], [3, 2, 1, 0], False),
        ([0, 1, 2], [3, 2, 1], False),
    ],
)
def test_hacking_is_three_evaluations_in_opposite_directions(proxy, gold, hacked):
    assert diverged(proxy, gold) is hacked


def test_time_weights_by_hand():
    assert time_weights([10, 20, 30], now=30, half_life=10) == pytest.approx(np.array([0.25, 0.5, 1.0]) / 1.75 * 3)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=20), st.floats(0.1, 1e6))
def test_time_weights_have_a_mean_of_one_whenever_now_is(times, half_life):
    early, late = time_weights(times, max(times), half_life), time_weights(times, max(times) + 1e5, half_life)
    assert early.mean() == pytest.approx(1)
    assert early == pytest.approx(late, rel=1e-6)
