"""Curves for the page: thinned so that no peak is lost, smoothed over all values, and several seeds as a band."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from penstock.ui import metrics
from penstock.ui.curves import LARGEST, SMOOTHED_FROM, Floats, Ints, smoothed, thin_places
from penstock.ui.live.index import Series, StageIndex
from penstock.ui.text import spread

POINTS, MOST_POINTS = 400, 4000
BAD = 100
"""Most places of non-finite values that are named."""


def short(value_N: Floats) -> list[float]:
    """Values with six significant digits."""
    return [float(f"{value:.6g}") for value in value_N.tolist()]


def points_of(step_N: Ints, value_N: Floats, points: int) -> dict[str, list[Any]]:
    """At most ``points`` of finite values."""
    places = thin_places(value_N, points)
    return {"steps": step_N[places].tolist(), "values": short(value_N[places])}


def named(name: str) -> dict[str, Any]:
    """How a metric is called and written."""
    known = metrics.shown(name)
    return {"name": name, "label": known.label, "unit": known.unit, "share": known.share, "group": metrics.group(name)}


def curve_of(name: str, series: Series, points: int, smooth: bool) -> dict[str, Any]:
    """One metric as the page draws it. ``bad`` are steps whose value was not finite (or beyond 1e100)."""
    step_N, value_N = series.columns()
    good_N = np.abs(value_N) < LARGEST
    found = named(name) | points_of(step_N[good_N], value_N[good_N], points)
    bad = step_N[~good_N].tolist()
    found |= {"last": metrics.value_of(name, series.values[-1]), "count": len(step_N)}
    found |= {"bad": spread(bad, BAD), "bad_count": len(bad)}
    if smooth and good_N.sum() >= SMOOTHED_FROM:
        found["smooth"] = points_of(step_N[good_N], smoothed(value_N[good_N]), points)
    return found


def curves_of(stage: StageIndex, points: int, smooth: bool) -> list[dict[str, Any]]:
    """All metrics of a stage in the order in which they are shown."""
    names = sorted(stage.series, key=metrics.order)
    return [curve_of(name, stage.series[name], points, smooth) for name in names]


def gains_of(stage: StageIndex) -> list[dict[str, str]]:
    """First and last value of every evaluation metric that has changed."""
    found = []
    for name in sorted(stage.series, key=metrics.order):
        values = stage.series[name].values
        if name.startswith("evaluation/") and len(set(values)) > 1:
            before, after = (metrics.value_of(name, value) for value in (values[0], values[-1]))
            found.append({"label": metrics.shown(name).label, "before": before, "after": after})
    return found


def copied(stage: StageIndex, smooth: bool = False) -> dict[str, tuple[Ints, Floats]]:
    """A stage's finite values by metric, as arrays that do not change when the index reads on; many are smoothed if asked."""
    found = {}
    for name, series in stage.series.items():
        step_N, value_N = series.columns()
        good_N = np.abs(value_N) < LARGEST
        step_N, value_N = step_N[good_N], value_N[good_N]
        found[name] = step_N, smoothed(value_N) if smooth and len(value_N) >= SMOOTHED_FROM else value_N
    return found


def band_of(members: Sequence[tuple[Ints, Floats]], points: int) -> dict[str, Any] | None:
    """Median, lowest and highest of several seeds at the steps that all of them have; None where they share none.

    A step that one of them has not reached is left out: a band over fewer runs would look narrower for no reason.
    """
    if len(members) < 2:
        return None
    common = members[0][0]
    for step_N, _ in members[1:]:
        common = np.intersect1d(common, step_N, assume_unique=True)
    if not len(common):
        return None
    value_RN = np.stack([value_N[np.searchsorted(step_N, common)] for step_N, value_N in members])
    median_N = np.median(value_RN, axis=0)
    places = thin_places(median_N, points)
    return {
        "steps": common[places].tolist(),
        "median": short(median_N[places]),
        "low": short(value_RN.min(0)[places]),
        "high": short(value_RN.max(0)[places]),
        "runs": len(members),
    }


def compared(
    stages: Mapping[str, Mapping[str, tuple[Ints, Floats]]], families: Sequence[Sequence[str]], points: int
) -> list[dict[str, Any]]:
    """Every metric of a stage over several runs: a curve for each run, and a band for each family of seeds.

    Args:
        stages: (steps, values) by metric, by run.
        families: runs that differ only in their seed, together.
    """
    found = []
    for name in sorted({name for measured in stages.values() for name in measured}, key=metrics.order):
        having = {run: measured[name] for run, measured in stages.items() if name in measured}
        lines = {run: points_of(step_N, value_N, points) for run, (step_N, value_N) in having.items()}
        bands = []
        for number, family in enumerate(families):
            band = band_of([having[run] for run in family if run in having], points)
            bands += [band | {"family": number}] if band else []
        found.append(named(name) | {"lines": lines, "bands": bands})
    return found
