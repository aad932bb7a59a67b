"""What the votes of a round say about a policy, by hand."""

import math

import pytest
from feedback_examples import EQUAL, answer, enrol, pair

from penstock.feedback.asking import Asked
from penstock.feedback.errors import FeedbackError
from penstock.feedback.exchange.snapshot import COMMON_WEIGHT, Votes, snapshot
from penstock.feedback.quality.true_share import true_share
from penstock.feedback.verdicts import gate_of, judged

RANDOM = [Asked(pair(f"r{i}"), (1.0,)) for i in range(8)]
DUELS = [Asked(pair(f"d{i}", strategy="duel"), (1.0,)) for i in range(4)]
LENIENT = {"sure": 0.0}


@pytest.fixture
def verdict(store):
    """``verdict(signs, gate, earlier)``: of one vote on each question."""
    enrol(store, "ann")

    def of(signs, gate=None, earlier=(), asked=(*RANDOM, *DUELS)):
        for name, sign in zip(store.ask([one.task for one in asked]), signs, strict=True):
            answer(store, name, "ann", sign)
        return judged("ask-2", asked, Votes.of(snapshot(store), EQUAL), [], earlier, gate)

    return of


def test_a_policy_that_nothing_is_judged_against_has_no_card(verdict):
    found = verdict([1] * 12)
    assert found.card is None
    assert (found.votes, found.questions) == (12, {"random": 8, "duel": 4})
    assert found.told()[0]["what"] == "annotator"


def test_a_card_counts_agreement_and_duels(verdict):
    found = verdict([1] * 6 + [-1] * 2 + [1, 1, 1, -1], LENIENT)
    assert (found.card.agreement.right, found.card.agreement.of) == (6, 8)
    assert found.card.wins == true_share([COMMON_WEIGHT] * 3 + [-COMMON_WEIGHT])
    assert found.card.accuracy == true_share([COMMON_WEIGHT] * 6 + [-COMMON_WEIGHT] * 2)
    assert found.card.expected == 1.0
    assert found.card.passed
    assert found.metrics()["card/wins"] == found.card.wins.value


def test_a_policy_that_loses_half_of_its_duels_is_held_back_and_the_reason_is_told(verdict):
    found = verdict([1] * 8 + [1, -1, -1, 1], {})
    assert found.because().startswith("not surely better than the weights before: won 50.0% [")
    assert found.metrics()["card/passed"] == 0.0


def test_what_was_expected_and_what_was_won_are_summed_over_rounds(verdict):
    found = verdict([1] * 8 + [1, -1, -1, -1], LENIENT, [{"proxy": [0.0, 0.5], "gold": [0.0, 0.3], "card": None}])
    assert found.proxy == pytest.approx([0.0, 0.5, 1.0])
    assert found.gold == pytest.approx([0.0, 0.3, 0.3 + found.card.wins.value - 0.5])


def earlier(right, total):
    """The verdict of an earlier round, with so many of ten votes as the reward models have it."""
    return {"proxy": [0.0], "gold": [0.0], "card": {"agreement": {"right": right, "of": 10}, "drift": {"total": total}}}


def test_drift_is_measured_from_the_first_card_and_is_a_concern(verdict):
    drifted = verdict([-1] * 8 + [1] * 4, LENIENT | {"threshold": 3.0}, [earlier(10, 0.0), earlier(2, 0.0)])
    assert any("has drifted below 100.0%" in reason for reason in drifted.card.concerns)
    assert drifted.because() == ""


@pytest.mark.parametrize(("total", "alarms"), [(0.0, False), (2.9, True)])
def test_drift_adds_up_over_rounds(verdict, total, alarms):
    found = verdict([-1] * 2 + [1] * 10, LENIENT | {"threshold": 3.0}, [earlier(10, 0.0), earlier(8, total)])
    assert (found.card.drift.alarm is not None) is alarms


def test_a_card_of_before_drift_was_carried_begins_at_nothing(verdict):
    older = earlier(10, 0.0)
    del older["card"]["drift"]
    assert verdict([1] * 12, LENIENT, [older]).card.drift.total == 0.0


def test_a_gate_without_votes_cannot_be_passed(verdict):
    with pytest.raises(FeedbackError, match="no vote on a duel or a random pair"):
        verdict([0] * 8, LENIENT, asked=RANDOM)


def test_without_duels_a_policy_is_held_back_and_what_is_undefined_is_left_out_of_metrics_and_null_in_json(verdict):
    found = verdict([1] * 8, {}, asked=RANDOM)
    assert "won 50.0% [5.0%, 95.0%] of 0 duels" in found.because()
    assert math.isnan(found.card.expected)
    assert "card/expected_wins" not in found.metrics()
    assert all(math.isfinite(value) for value in found.metrics().values())
    assert found.plain()["card"]["expected"] is None


def test_a_gate_is_made_of_known_fields():
    assert gate_of({"accuracy": 0.6, "cell": 20.0}).cell == 20
    with pytest.raises(FeedbackError, match="unknown field 'accurracy'"):
        gate_of({"accurracy": 0.6})
