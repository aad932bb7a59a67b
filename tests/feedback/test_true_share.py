"""The share behind erring votes: by hand, what must not change it, and how often it is sure of what is not so."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.feedback.errors import FeedbackError
from penstock.feedback.quality.true_share import true_share

CERTAIN = 60.0
"""Log-odds of a vote that never errs: its tanh is 1."""
ODDS = st.lists(st.floats(-6, 6), max_size=30)


def worth(accuracy):
    return math.log(accuracy / (1 - accuracy))


@pytest.mark.parametrize(
    ("votes", "value", "above_half", "interval"),
    [
        ([], 0.5, 0.5, (0.05, 0.95)),
        ([CERTAIN] * 3, 4 / 5, 1 - 0.5**4, (0.05**0.25, 0.95**0.25)),  # Beta(4, 1): the chance of more than s is 1 - s⁴
        # Density 1 + 0.4 (2 s - 1): below s lies 0.6 s + 0.4 s² of it; half of that above one half is (1 + 0.4 / 2) / 2.
        ([worth(0.7)], 0.5 + 0.4 / 6, 0.6, ((0.44**0.5 - 0.6) / 0.8, (1.88**0.5 - 0.6) / 0.8)),
    ],
    ids=["nothing", "votes that never err", "one that errs in 30%"],
)
def test_shares_by_hand(votes, value, above_half, interval):
    found = true_share(votes)
    assert (found.value, found.above_half) == pytest.approx((value, above_half), abs=1e-3)
    assert (found.low, found.high) == pytest.approx(interval, abs=1e-3)
    assert found.of == len(votes)


def test_many_erring_votes_come_to_the_share_without_their_errors():
    counts = 5800, 4200  # with votes right in 70% of cases, 58% say so where 70% are so: (0.58 - 0.3) / 0.4
    found = true_share([worth(0.7)] * counts[0] + [-worth(0.7)] * counts[1])
    assert found.value == pytest.approx(0.7, abs=0.002)
    assert found.low < 0.7 < found.high


def test_votes_that_cancel_out_say_nothing():
    assert true_share([1.0, 0.0, -2.0, 0.0]) == true_share([1.0, -2.0])


def test_log_odds_without_bounds_are_refused():
    with pytest.raises(FeedbackError, match="finite"):
        true_share([math.inf])


@given(ODDS, st.randoms())
def test_order_does_not_matter_and_the_other_side_has_the_rest(odds, random):
    found, other = true_share(odds), true_share([-value for value in odds])
    shuffled = random.sample(odds, len(odds))
    assert true_share(shuffled) == found
    assert (found.value, found.low, found.above_half) == pytest.approx((1 - other.value, 1 - other.high, 1 - other.above_half))
    assert 0 <= found.low <= found.value <= found.high <= 1


@given(ODDS, st.floats(0.01, 6))
def test_a_vote_for_a_side_never_makes_it_less_likely(odds, more):
    assert true_share([*odds, more]).above_half >= true_share(odds).above_half - 1e-9


@pytest.mark.parametrize(("believed", "least"), [(0.55, 0.0), (0.7, 0.035), (0.9, 0.035)])
def test_at_one_half_it_is_sure_in_one_case_of_twenty_at_most_whatever_the_accuracies_are_taken_to_be(believed, least):
    draw = np.random.default_rng(0)
    sure = [true_share(worth(believed) * draw.choice([-1, 1], 300)).above_half >= 0.95 for _ in range(2000)]
    assert least < np.mean(sure) < 0.065
