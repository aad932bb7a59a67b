"""The report card: what holds a checkpoint back, what is a concern and does not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.feedback.errors import FeedbackError
from penstock.feedback.judgements import Unit
from penstock.feedback.quality.drift import JudgedPair, anchor_change
from penstock.feedback.quality.reliability import Share
from penstock.feedback.quality.report_card import Evidence, Gate, report_card

VOTE = 0.847
"""Log-odds of a vote that is right in 70% of cases."""


def pairs(right, wrong, lengths=(10, 10), **groups):
    """Pairs in which the first response is shorter or as long, and the reward model agrees with so many votes."""
    return [JudgedPair(VOTE, 1.0, lengths, groups)] * right + [JudgedPair(-VOTE, 1.0, lengths, groups)] * wrong


def card(duels, others=None, gate=None, **fields):
    """A card of duels, and of random questions on which the reward models do well unless said."""
    return report_card(Evidence("ask-2", duels, pairs(80, 20) if others is None else others, **{"gold": 40} | fields), gate)


def test_a_policy_that_people_surely_prefer_passes():
    found = card(pairs(240, 160), proxy=(0.5, 0.7), wins=(0.5, 0.6))
    assert found.passed
    assert found.wins.value == pytest.approx((0.6 - 0.3) / 0.4, abs=0.01)
    assert found.hacking_gap == pytest.approx(0.1)


@pytest.mark.parametrize(("won", "lost"), [(196, 204), (200, 200), (208, 192), (0, 0)])
def test_a_policy_that_people_do_not_surely_prefer_is_held_back(won, lost):
    (reason,) = card(pairs(won, lost)).failures
    assert reason.startswith("not surely better than the weights before")


def test_a_policy_that_people_prefer_passes_though_its_reward_models_are_no_better_than_a_coin():
    found = card(pairs(240, 160), pairs(50, 50))
    assert found.passed
    assert [reason.split()[3] for reason in found.concerns] == ["accuracy,"]


def test_a_group_that_surely_prefers_the_weights_before_holds_back_and_a_tiny_one_does_not():
    most = pairs(240, 100, language="en")
    assert card([*most, *pairs(5, 35, language="fr")], group_names=("language",)).failures[0].startswith("language=fr prefers")
    assert card([*most, *pairs(0, 20, language="fr")], group_names=("language",)).passed


def test_a_group_in_which_the_reward_models_fail_is_a_concern():
    found = card(pairs(240, 160), pairs(5, 35, language="fr") + pairs(90, 10, language="en"), group_names=("language",))
    assert found.passed
    assert "their accuracy is below 50% for language=fr" in found.concerns


def test_reward_models_that_expected_far_more_wins_are_a_concern():
    found = card(pairs(220, 180))
    assert found.passed
    assert found.concerns == ("they expected 100.0% of the duels to be won",)
    assert card(pairs(390, 10)).concerns == ()


def test_drift_length_anchors_and_divergence_are_concerns_that_hold_nothing_back():
    likes_long = [JudgedPair(-VOTE, 1.0, (200, 100), {})] * 100 + [JudgedPair(VOTE, 1.0, (10, 10), {})] * 500
    before, after = ({Unit(f"anchor {n}", "first", "second"): [sign] * 3 for n in range(8)} for sign in (1, -1))
    turned = anchor_change(before, after)
    found = card(pairs(390, 10), likes_long, accepted=Share(990, 1000), anchors=turned, proxy=(0, 1, 2, 3), wins=(3, 2, 1, 0))
    assert found.passed
    assert [reason.split()[1] for reason in found.concerns] == ["agreement", "prefer", "judge", "proxy"]


def test_erring_votes_do_not_make_people_look_indifferent_to_length():
    # People prefer the longer response in 90% of cases and err in 30%, so 66% of the votes are for it; the model is right.
    longer = [JudgedPair(VOTE, 1.0, (20, 10), {})] * 330 + [JudgedPair(-VOTE, 1.0, (20, 10), {})] * 170
    assert card(pairs(390, 10), longer).concerns == ()


def test_the_first_card_has_nothing_to_drift_from():
    assert card(pairs(240, 160)).drift.alarm is None


def test_limits_are_shares():
    with pytest.raises(FeedbackError, match="sure"):
        Gate(sure=1.5)


@given(st.integers(0, 60), st.integers(0, 60), st.integers(1, 20))
def test_more_duels_won_never_hold_a_policy_back(won, lost, more):
    if won + lost and card(pairs(won, lost)).passed:
        assert card(pairs(won + more, lost)).passed


@given(st.integers(1, 60), st.integers(1, 60), st.floats(0.1, 3), st.sampled_from([-1.0, 1.0]))
def test_what_reward_models_think_decides_nothing(won, lost, size, side):
    theirs = [JudgedPair(pair.log_odds, side * size, pair.lengths, pair.groups) for pair in pairs(won, lost)]
    assert card(theirs).failures == card(pairs(won, lost)).failures


def test_without_gold_a_majority_that_colludes_may_be_right_for_all_that_is_known():
    assert card(pairs(240, 160)).concerns == ()
    (concern,) = card(pairs(240, 160), gold=0).concerns
    assert "looks like one that colludes" in concern
