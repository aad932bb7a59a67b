"""What is asked: shares, urges by hand values, and that the random share is random."""

import numpy as np
import pytest
from feedback_examples import pair
from hypothesis import given
from hypothesis import strategies as st

from penstock.feedback.errors import FeedbackError
from penstock.feedback.select import Mix, anchors, portions, select, urges, win_probability

SCORES = np.array([[[2.0, 0.0], [0.0, 0.0], [1.0, 0.0], [0.0, 9.0]], [[2.0, 0.0], [0.0, 0.0], [0.0, 1.0], [0.0, 9.0]]])
"""Two members: pair 0 is sure, pair 1 a tie, about pair 2 they disagree, pair 3 has the largest gap."""


def only(strategy):
    return Mix({"random": 0.2, strategy: 0.8})


def test_chances_are_bradley_terry():
    assert win_probability(SCORES)[0] == pytest.approx([1 / (1 + np.exp(-2)), 0.5, 1 / (1 + np.exp(-1)), 1 / (1 + np.exp(9))])


def test_urges_by_hand():
    gap = 1 / (1 + np.exp(-1)) - 0.5
    found = urges(SCORES)
    assert found["disagreement"] == pytest.approx([0, 0, gap, 0])
    assert found["near_tie"].argmax() == 1
    assert found["large_gap"].tolist() == [2, 0, 0, 9]


@pytest.mark.parametrize(("strategy", "best"), [("disagreement", 2), ("large_gap", 3)])
def test_a_strategy_takes_its_best_first(strategy, best):
    chosen = [select(SCORES, 2, only(strategy), seed) for seed in range(20)]
    firm = [dict(map(reversed, asked)).get(strategy) for asked in chosen]
    drawn = [dict(map(reversed, asked))["random"] for asked in chosen]
    assert all(got == best or at_random == best for got, at_random in zip(firm, drawn, strict=True))


@given(st.integers(0, 60), st.integers(0, 5), st.sampled_from([0.2, 0.25, 0.5, 1.0]))
def test_as_many_as_wanted_are_asked_once_and_enough_at_random(wanted, seed, share):
    scores = np.random.default_rng(seed).normal(size=(3, 60, 2)).round(1)
    others = {"disagreement": (1 - share) / 2, "near_tie": 0.0, "large_gap": (1 - share) / 2}
    asked = select(scores, wanted, Mix({"random": share, **others}), seed)
    assert len({index for index, _ in asked}) == len(asked) == wanted
    assert sum(strategy == "random" for _, strategy in asked) >= share * wanted - 1e-9
    assert asked == select(scores, wanted, Mix({"random": share, **others}), seed)


def test_the_random_share_is_even_over_all_pairs():
    counts = np.zeros(4)
    for seed in range(2000):
        counts[[index for index, how in select(SCORES, 2, only("large_gap"), seed) if how == "random"]] += 1
    assert counts.sum() == 2000
    assert counts == pytest.approx([500] * 4, abs=70)


@given(st.integers(0, 1000), st.lists(st.integers(1, 100), min_size=3, max_size=3))
def test_portions_add_up(wanted, parts):
    shares = {name: part / sum(parts) for name, part in zip(("random", "near_tie", "large_gap"), parts, strict=True)}
    count = portions(wanted, shares)
    assert sum(count.values()) == wanted
    assert count["random"] >= shares["random"] * wanted - 1e-6
    assert min(count.values()) >= 0


def test_less_than_a_fifth_at_random_is_refused():
    with pytest.raises(FeedbackError, match=r"at least 0\.2"):
        Mix({"random": 0.1, "near_tie": 0.9})
    with pytest.raises(FeedbackError, match="add up to 1"):
        Mix({"random": 0.5, "near_tie": 0.4})
    with pytest.raises(FeedbackError, match="shares that"):
        Mix({"random": 0.5, "coin": 0.5})


def test_one_reward_model_cannot_disagree():
    with pytest.raises(FeedbackError, match="at least 2 reward models"):
        select(SCORES[:1], 2, only("disagreement"))


def test_anchors_are_the_same_items_in_a_round_of_their_own():
    task = pair()
    [first], [second] = anchors([task], "2026-W47"), anchors([task], "2026-W48")
    assert first.item == task.item
    assert len({task.id, first.id, second.id}) == 3
