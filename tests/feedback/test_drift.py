"""Drift, groups, length and hacking by hand values; the report card's gate."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.feedback.errors import FeedbackError
from penstock.feedback.judgements import Unit
from penstock.feedback.quality.drift import (
    JudgedPair,
    accuracy,
    anchor_change,
    cusum,
    diverged,
    fit_overoptimisation,
    group_accuracy,
    length_bias,
    time_weights,
)
from penstock.feedback.quality.reliability import Share
from penstock.feedback.quality.report_card import Evidence, Gate, report_card


def judged(sign, margin, lengths=(10, 10), **groups):
    return JudgedPair(sign, margin, lengths, groups)


def test_the_cumulative_sum_by_hand():
    found = cusum([1, 0, 0, 1, 0], expected=0.7, slack=0.1, threshold=1.0)
    assert found.sum_N == pytest.approx([0, 0.6, 1.2, 0.8, 1.4])
    assert found.alarm == 2


def test_a_model_that_holds_its_accuracy_seldom_alarms_and_one_that_fell_does():
    draw = np.random.Generator(np.random.Philox(0))
    steady = [cusum(draw.random(300) < 0.7, 0.7).alarm for _ in range(200)]
    fallen = [cusum(draw.random(300) < 0.5, 0.7).alarm for _ in range(200)]
    assert sum(alarm is not None for alarm in steady) < 20
    assert all(alarm is not None for alarm in fallen)
    assert np.median([alarm for alarm in fallen if alarm is not None]) < 80


def units(*signs):
    return {Unit(f"anchor {number}", 0, 1): list(said) for number, said in enumerate(signs)}


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
    assert accuracy(pairs) == Share(3, 4)
    assert group_accuracy(pairs, "language") == {"de": Share(1, 1), "fr": Share(1, 2)}


def test_length_bias_by_hand():
    pairs = [
        judged(1, 1.0, (200, 100)),  # both prefer the longer one
        judged(-1, 1.0, (200, 100)),  # people the shorter one, the model the longer one
        judged(-1, -1.0, (200, 100)),  # both the shorter one
        judged(1, -1.0, (100, 100)),  # equal lengths
    ]
    found = length_bias(pairs)
    assert (found.people, found.model) == (Share(1, 3), Share(2, 3))
    assert (found.matched, found.against) == (Share(0, 1), Share(1, 2))


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


def test_the_peak_of_overoptimisation_is_recovered():
    kl = np.array([0.5, 2.0, 8.0, 20.0, 60.0])
    gold = np.sqrt(kl) * (1.2 - 0.5 * np.log(np.sqrt(kl)))
    found = fit_overoptimisation(kl, gold)
    assert (found.alpha, found.beta) == pytest.approx((1.2, 0.5))
    assert found.peak_kl == pytest.approx(math.exp(2 * (1.2 / 0.5 - 1)))


def test_time_weights_by_hand():
    assert time_weights([10, 20, 30], now=30, half_life=10) == pytest.approx(np.array([0.25, 0.5, 1.0]) / 1.75 * 3)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=20), st.floats(0.1, 1e6))
def test_time_weights_have_a_mean_of_one_whenever_now_is(times, half_life):
    early, late = time_weights(times, max(times), half_life), time_weights(times, max(times) + 1e5, half_life)
    assert early.mean() == pytest.approx(1)
    assert early == pytest.approx(late, rel=1e-6)


def good_pairs(count=200, **groups):
    return [judged(1 if number % 2 else -1, 1.0 if number % 2 else -1.0, **groups) for number in range(count)]


def test_a_good_checkpoint_passes():
    card = report_card(Evidence("step 100", good_pairs(), expected=0.7, proxy=(0.5, 0.7), gold=(0.5, 0.6)))
    assert card.passed
    assert card.hacking_gap == pytest.approx(0.1)


def test_a_group_that_is_failed_holds_a_checkpoint_back_and_a_tiny_one_does_not():
    wrong = [judged(1, -1.0, language="fr")] * 40
    failed = report_card(Evidence("c", good_pairs(language="en") + wrong, 0.7, ("language",)), Gate(threshold=1000))
    tiny = report_card(Evidence("c", good_pairs(language="en") + wrong[:10], 0.7, ("language",)), Gate(threshold=1000))
    assert failed.failures == ("group language=fr is below 50%",)
    assert tiny.passed
    assert tiny.groups["language"]["fr"] == Share(0, 10)


def test_drift_length_anchors_and_hacking_each_hold_a_checkpoint_back():
    pairs = good_pairs() + [judged(-1, 1.0, (200, 100))] * 60
    turned = anchor_change(units(*[[1, 1, 1]] * 8), units(*[[-1, -1, -1]] * 8))
    card = report_card(Evidence("c", pairs, 0.9, (), turned, (0, 1, 2, 3), (3, 2, 1, 0)))
    assert card.drift_alarm is not None
    assert [reason.split()[0] for reason in card.failures] == ["accuracy", "prefers", "people", "the"]


def test_silence_does_not_pass():
    with pytest.raises(FeedbackError, match="ask people"):
        report_card(Evidence("c", [], 0.7))


def test_a_checkpoint_that_people_like_less_than_the_one_before_is_held_back():
    worse, as_good = (Evidence("c", good_pairs(), 0.7, wins=Share(won, 50)) for won in (10, 22))
    assert report_card(worse).failures == ("people prefer the weights before (won 20.0% of the duels)",)
    assert report_card(as_good).passed
