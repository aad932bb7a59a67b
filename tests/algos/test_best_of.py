"""Estimates of what the best of k samples is worth, against hand values, all subsets, and each other."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.algos.best_of import best_of_k, choose, max_at_k, pass_at_k
from penstock.core.errors import TrainingError


@pytest.mark.parametrize(
    ("samples", "right", "k", "chance"),
    [(4, 1, 1, 0.25), (4, 1, 2, 0.5), (4, 2, 2, 5 / 6), (4, 0, 3, 0.0), (4, 3, 2, 1.0), (1, 1, 1, 1.0)],
)
def test_pass_at_k_by_hand(samples, right, k, chance):
    assert pass_at_k(samples, right, k) == pytest.approx(chance)


@pytest.mark.parametrize(
    ("score", "value", "k", "expected"),
    [
        ([1, 2, 3], [10, 20, 30], 1, 20.0),
        ([1, 2, 3], [10, 20, 30], 2, (20 + 30 + 30) / 3),
        ([1, 2, 3], [10, 20, 30], 3, 30.0),
        ([3, 2, 1], [10, 20, 30], 2, (20 + 10 + 10) / 3),  # a ranker that is always wrong
        ([1, 1], [0, 1], 2, 0.5),  # a tie is broken by a coin
    ],
)
def test_the_best_of_k_by_hand(score, value, k, expected):
    assert best_of_k(score, value, k) == pytest.approx(expected)


@given(seed=st.integers(0, 10_000), count=st.integers(1, 7), data=st.data())
def test_the_best_of_k_is_the_mean_over_all_subsets(seed, count, data):
    k = data.draw(st.integers(1, count))
    rng = np.random.default_rng(seed)
    score, value = rng.permutation(count), rng.normal(size=count)
    subsets = [max(subset, key=lambda i: score[i]) for subset in combinations(range(count), k)]
    assert best_of_k(score, value, k) == pytest.approx(float(np.mean([value[i] for i in subsets])))


@given(right=st.lists(st.booleans(), min_size=1, max_size=12), data=st.data())
def test_the_best_of_k_by_a_perfect_judge_is_pass_at_k(right, data):
    k = data.draw(st.integers(1, len(right)))
    marks = [float(mark) for mark in right]
    assert best_of_k(marks, marks, k) == pytest.approx(pass_at_k(len(right), sum(right), k))


def test_many_samples_do_not_overflow():
    assert pass_at_k(2000, 1, 1000) == pytest.approx(0.5)
    assert best_of_k(range(2000), range(2000), 1) == pytest.approx(999.5)


@pytest.mark.parametrize("k", [0, 3])
def test_more_than_there_are_is_undefined(k):
    with pytest.raises(TrainingError, match="undefined"):
        best_of_k([1.0, 2.0], [1.0, 2.0], k)
    with pytest.raises(TrainingError, match="undefined"):
        pass_at_k(2, 1, k)


def test_values_that_do_not_belong_to_the_scores_are_refused():
    with pytest.raises(TrainingError, match="do not go together"):
        best_of_k([1.0, 2.0], [1.0], 1)
    with pytest.raises(TrainingError, match="not finite"):
        best_of_k([1.0, float("nan")], [1.0, 2.0], 1)


def test_the_first_of_the_highest_is_chosen():
    assert choose([1.0, 3.0, 3.0]) == 1
    with pytest.raises(TrainingError, match="undefined"):
        choose([])


def test_the_expected_maximum_by_hand():
    assert max_at_k([3.0, 1.0, 2.0], 2) == pytest.approx((3 + 3 + 2) / 3)
