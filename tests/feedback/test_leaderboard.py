"""A rating of models by who won: hand values, ties, intervals that are the same for the same seed."""

import math

import numpy as np
import pytest

from penstock.feedback.errors import FeedbackError
from penstock.feedback.quality.leaderboard import Duel, leaderboard, strengths


def duels(first, second, wins, of, ties=0):
    scores = [1.0] * wins + [0.5] * ties + [0.0] * (of - wins - ties)
    return [Duel(first, second, score, f"{first}{second}{n}") for n, score in enumerate(scores)]


def test_odds_of_three_to_one_are_191_points():
    best, other = leaderboard(duels("a", "b", 3, 4), prior=0, samples=5)
    assert best.model == "a"
    assert best.rating - other.rating == pytest.approx(400 * math.log10(3), abs=1e-4)
    assert best.rating + other.rating == pytest.approx(0, abs=1e-6)
    assert (best.wins, best.votes, other.wins) == (3, 4, 1)


def test_shares_that_fit_strengths_of_1_2_and_4_give_them():
    found = leaderboard(duels("b", "a", 2, 3) + duels("c", "a", 4, 5) + duels("c", "b", 2, 3), prior=0, samples=2)
    rating = {one.model: one.rating for one in found}
    assert [one.model for one in found] == ["c", "b", "a"]
    assert rating["b"] - rating["a"] == pytest.approx(400 * math.log10(2), abs=1e-3)
    assert rating["c"] - rating["a"] == pytest.approx(400 * math.log10(4), abs=1e-3)


def test_a_tie_is_half_a_win_and_the_order_of_the_names_says_nothing():
    even = leaderboard(duels("a", "b", 0, 2, ties=2), samples=2)
    assert [one.rating for one in even] == pytest.approx([0, 0], abs=1e-6)
    turned = [Duel(one.second, one.first, 1 - one.score, one.prompt) for one in duels("a", "b", 5, 7)]
    assert leaderboard(turned, samples=3)[0].rating == pytest.approx(leaderboard(duels("a", "b", 5, 7), samples=3)[0].rating)


def test_who_has_won_everything_is_not_infinitely_good():
    best, _ = leaderboard(duels("a", "b", 6, 6), samples=20)
    # The prior's slope for each: 6 (1 - s) + (1 - 2 t) / 2 = 0 with s = σ(2x), t = σ(x): x = 1.1747 solves it.
    assert 100 < best.rating < 400
    assert math.isfinite(best.interval[1])


def test_the_interval_holds_the_truth_about_as_often_as_it_says():
    """20 sets of 300 duels at odds of 2 to 1: at least 17 of 20 intervals hold the difference (95% would be 19)."""
    draws, held = np.random.default_rng(0), 0
    for _ in range(20):
        wins = int((draws.random(300) < 2 / 3).sum())
        best = leaderboard(duels("a", "b", wins, 300), samples=200)
        [a] = [one for one in best if one.model == "a"]
        held += a.interval[0] <= 200 * math.log10(2) <= a.interval[1]
    assert held >= 17


def test_the_same_seed_gives_the_same_intervals():
    given = duels("a", "b", 6, 9) + duels("b", "c", 5, 9)
    assert leaderboard(given, seed=3) == leaderboard(given, seed=3)
    assert leaderboard(given, seed=3) != leaderboard(given, seed=4)


def test_votes_on_one_prompt_are_drawn_together():
    """Ten votes on each of four prompts are four pieces of evidence: the interval is wider than with forty prompts."""
    alone = duels("a", "b", 30, 40)
    together = [one._replace(prompt=str(n // 10)) for n, one in enumerate(alone)]
    wide, narrow = (leaderboard(given)[0].interval for given in (together, alone))
    assert wide[1] - wide[0] > narrow[1] - narrow[0]


def test_who_has_won_everything_is_not_certain_to_a_point():
    [best, _] = leaderboard(duels("a", "b", 30, 30))
    assert best.interval[0] < best.rating < best.interval[1]


def test_one_model_alone_has_no_place():
    with pytest.raises(FeedbackError, match="two are needed"):
        leaderboard([Duel("a", "a", 1.0, "p")])


def test_strengths_of_samples_are_those_of_each():
    won_SMM = np.array([[[0, 3], [1, 0]], [[0, 1], [1, 0]]], float)
    half_SM = np.full(won_SMM.shape[:2], 0.5)
    both = strengths(won_SMM, half_SM, half_SM)
    assert both[0] == pytest.approx(strengths(won_SMM[:1], half_SM[:1], half_SM[:1])[0])
    assert both[1] == pytest.approx([0, 0], abs=1e-9)
