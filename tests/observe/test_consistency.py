"""Families of seeds: values by hand, what few seeds cannot show, and how often equal families are called different."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.observe.consistency import compare, interquartile_mean, lowest_p_value, permutation_test, seeds_needed, summary

HIGH, LOW = (0.9, 0.91, 0.92, 0.93), (0.5, 0.52, 0.51, 0.53)


def array(*values):
    return np.array(values, np.float64)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((7.0,), 7.0),
        ((1.0, 3.0), 2.0),
        ((0.0, 10.0, 40.0), (0.25 * 0 + 10 + 0.25 * 40) / 1.5),  # the middle half is from 0.75 to 2.25
        ((100.0, 2.0, 4.0, -50.0), 3.0),
        ((1.0, 3.0, 5.0, 7.0, 900.0), (0.75 * 3 + 5 + 0.75 * 7) / 2.5),
        ((5.0, 8.0, 4.0, 38.0, 8.0, 6.0, 9.0, 7.0, 7.0, 3.0, 1.0, 6.0), 6.5),  # 5 6 6 7 7 8
    ],
)
def test_the_interquartile_mean_by_hand(values, expected):
    assert interquartile_mean(array(*values)) == pytest.approx(expected)


def test_the_interquartile_mean_is_of_each_row():
    assert interquartile_mean(np.array([[1.0, 3.0], [5.0, 9.0]])) == pytest.approx([2.0, 7.0])


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ((4.0, 5.0, 6.0, 7.0), (0.0, 1.0, 2.0, 3.0), 2 / 70),  # the furthest apart of 70 ways, either way round
        ((5.0, 6.0, 7.0), (1.0, 2.0, 3.0), 2 / 20),
        ((3.0,), (1.0, 2.0), 2 / 3),  # means are apart by 1.5, or by 0 with 2 alone, or by 1.5 with 1 alone
        ((1.0, 1.0), (1.0, 1.0), 1.0),
    ],
)
def test_the_permutation_test_by_hand(first, second, expected):
    assert permutation_test(array(*first), array(*second)) == pytest.approx(expected)


@given(st.lists(st.integers(-5, 5), min_size=2, max_size=5), st.lists(st.integers(-5, 5), min_size=2, max_size=5))
def test_the_permutation_test_counts_all_ways(first, second):
    pooled, ways, count = first + second, 0, 0
    for chosen in itertools.combinations(range(len(pooled)), len(first)):
        mine = sum(pooled[place] for place in chosen)
        apart = abs(mine * len(second) - (sum(pooled) - mine) * len(first))  # whole numbers: nothing is rounded
        ways += apart >= abs(sum(first) * len(second) - sum(second) * len(first))
        count += 1
    assert permutation_test(array(*first), array(*second)) == pytest.approx(ways / count)


def test_large_families_are_dealt_out_at_random():
    generator = np.random.default_rng(0)
    first, second = generator.normal(0, 1, 40), generator.normal(1, 1, 40)
    assert permutation_test(first, second) < 0.001
    assert permutation_test(first, first) == pytest.approx(1.0)


def test_families_far_apart_are_different_in_both_directions():
    found = compare(HIGH, LOW)
    assert (found.verdict, found.chance) == ("better", 1.0)
    assert found.difference == pytest.approx(0.4)
    assert found.interval[0] > 0.35
    assert compare(LOW, HIGH).verdict == "worse"


def test_three_seeds_each_cannot_show_a_difference():
    found = compare((0.9, 0.91, 0.92), (0.1, 0.2, 0.3))
    assert (found.verdict, found.p_value) == ("too few seeds", pytest.approx(0.1))
    assert (lowest_p_value(3, 3), seeds_needed()) == (pytest.approx(0.1), 4)


def test_many_pairs_need_more_seeds():
    assert compare(HIGH, LOW, pairs=3).verdict == "too few seeds"
    assert seeds_needed(3) == 5


def test_what_overlaps_is_undecided():
    assert compare((0.5, 0.6, 0.7, 0.8), (0.55, 0.65, 0.72, 0.78)).verdict == "undecided"


def test_equal_families_are_rarely_called_different():
    generator = np.random.default_rng(1)
    wrong = [compare(*generator.normal(0, 1, (2, 5))).verdict in ("better", "worse") for _ in range(100)]
    assert np.mean(wrong) <= 0.05 + 2 * (0.05 * 0.95 / 100) ** 0.5


def test_a_summary_has_middle_interval_and_ends():
    found = summary((0.1, 0.4, 0.5, 0.6, 0.9))
    assert (found.count, found.lowest, found.highest) == (5, 0.1, 0.9)
    assert found.middle == pytest.approx(0.5)
    assert 0.1 < found.interval[0] < 0.5 < found.interval[1] < 0.9


@pytest.mark.parametrize("values", [(), (0.5, float("nan"))])
def test_results_that_are_none_are_refused(values):
    with pytest.raises(ValueError, match="finite"):
        summary(values)


def test_one_result_has_no_interval():
    assert summary((0.5,)).interval is None
    assert compare((0.5,), (0.1, 0.2, 0.3)).interval is None
    assert compare((0.5, 0.6), (0.1, 0.2, 0.3)).interval is not None
