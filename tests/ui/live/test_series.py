"""Curves for the page: no peak is lost, means are those of all values, bands are of seeds at steps they share."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.ui.curves import smoothed, thin_places
from penstock.ui.live.index import Series, StageIndex
from penstock.ui.live.series import band_of, compared, copied, curve_of


def series_of(*values: float, first: int = 1) -> Series:
    made = Series()
    for place, value in enumerate(values):
        made.add(first + place, value)
    return made


def test_few_values_are_all_drawn() -> None:
    assert thin_places(np.array([3.0, 1.0, 2.0]), 20).tolist() == [0, 1, 2]


def test_a_single_spike_among_ten_thousand_values_is_drawn() -> None:
    value_N = np.zeros(10_000)
    value_N[[4321, 7777]] = 9.0, -3.0
    places = thin_places(value_N, 400).tolist()
    assert {0, 4321, 7777, 9999} <= set(places)
    assert len(places) <= 400


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=700), st.integers(20, 300))
def test_thinning_keeps_ends_extremes_and_the_bound(values: list[float], points: int) -> None:
    value_N = np.array(values)
    places = thin_places(value_N, points)
    assert len(places) <= points
    assert places[0] == 0
    assert places[-1] == len(values) - 1
    assert (np.diff(places) > 0).all()
    assert {value_N[places].min(), value_N[places].max()} == {min(values), max(values)}


def test_the_running_mean_is_that_of_a_window_which_shrinks_at_the_ends() -> None:
    values = [float((7 * place) % 31) for place in range(200)]
    reach = [min(2, place, 199 - place) for place in range(200)]
    expected = [np.mean(values[place - far : place + far + 1]) for place, far in enumerate(reach)]
    assert smoothed(np.array(values)).tolist() == pytest.approx(expected)


def test_a_curve_names_steps_whose_value_was_not_finite() -> None:
    curve = curve_of("loss", series_of(1.0, float("nan"), 3.0, float("inf")), 20, smooth=True)
    assert (curve["steps"], curve["values"], curve["bad"], curve["bad_count"]) == ([1, 3], [1.0, 3.0], [2, 4], 2)
    assert curve["last"] == "∞"


def test_a_curve_without_a_finite_value_has_no_points() -> None:
    curve = curve_of("loss", series_of(float("nan")), 20, smooth=True)
    assert (curve["steps"], curve["values"], curve["bad"]) == ([], [], [1])


def test_a_band_is_median_lowest_and_highest_at_the_steps_that_all_seeds_have() -> None:
    members = [
        (np.array([1, 2, 3]), np.array([1.0, 2.0, 3.0])),
        (np.array([1, 2]), np.array([5.0, 4.0])),
        (np.array([0, 1, 2]), np.array([9.0, 3.0, 9.0])),
    ]
    band = band_of(members, 20)
    assert band == {"steps": [1, 2], "median": [3.0, 4.0], "low": [1.0, 2.0], "high": [5.0, 9.0], "runs": 3}


@pytest.mark.parametrize(
    "members", [[], [(np.array([1]), np.array([1.0]))], [(np.array([1]), np.array([1.0])), (np.array([2]), np.array([1.0]))]]
)
def test_there_is_no_band_of_one_run_or_of_runs_that_share_no_step(members: list) -> None:
    assert band_of(members, 20) is None


def test_runs_over_each_other_have_a_line_each_and_a_band_for_a_family() -> None:
    stages = {
        name: copied(StageIndex("grpo", series={"loss": series_of(*values)}))
        for name, values in (("a", (1.0, 2.0)), ("b", (3.0, 4.0)), ("c", (9.0,)))
    }
    (found,) = compared(stages, [["a", "b"], ["c"]], 20)
    assert found["lines"] == {
        "a": {"steps": [1, 2], "values": [1.0, 2.0]},
        "b": {"steps": [1, 2], "values": [3.0, 4.0]},
        "c": {"steps": [1], "values": [9.0]},
    }
    assert [(band["family"], band["median"]) for band in found["bands"]] == [(0, [2.0, 3.0])]
