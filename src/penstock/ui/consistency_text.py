"""Runs side by side for the terminal: families of seeds, their bands over the steps, and which family is better."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from penstock.config.spec import difference
from penstock.core.errors import DataError
from penstock.observe.consistency import Comparison, compare, interquartile_mean, seeds_needed, summary
from penstock.ui.curves import Floats
from penstock.ui.live.index import LogIndex
from penstock.ui.live.runs import family_of, folders_of
from penstock.ui.metrics import text_of, value_of

USUAL = ("evaluation/reward", "evaluation/accuracy", "reward/mean", "accuracy")
"""Metrics that are compared where none is named: the first that all runs have."""
MOST_FAMILIES, MOST_RUNS, BAND_STEPS = 8, 200, 4


@dataclass(frozen=True)
class Result:
    """One run: its values of the metric by step."""

    name: str
    seed: int
    spec: dict[str, Any]
    values: dict[int, float]


@dataclass(frozen=True)
class Family:
    """Runs that differ in name and seed alone; ``letter`` is how tables call them."""

    letter: str
    results: tuple[Result, ...]

    def at(self, step: int) -> list[float]:
        return [result.values[step] for result in self.results]


def comparison_lines(places: Sequence[Path], metric: str = "", stage: str = "", lower: bool = False) -> list[str]:
    """How families of runs compare, in lines of text.

    Args:
        places: run folders, or folders of them.
        metric: empty: the first of ``USUAL`` that all runs have.
        stage: empty: the last one of each run's spec.
        lower: lower values are better.

    Raises:
        DataError: no runs, or runs that cannot be compared; says which and why.
    """
    folders = list(dict.fromkeys(folder for place in places for folder in folders_of(place)))
    if not 0 < len(folders) <= MOST_RUNS:
        named = ", ".join(map(str, places))
        raise DataError(f"{named}: {len(folders)} runs there; name 1 to {MOST_RUNS} run folders, or folders of them")
    read = [(folder, *_read(folder, stage)) for folder in folders]
    chosen = metric or next((name for name in USUAL if all(name in series for _, _, series in read)), "")
    for folder, _, series in read:
        if not series.get(chosen):
            known = ", ".join(sorted(series)) or "none yet"
            raise DataError(f"{folder}: no values of {chosen or ' or '.join(USUAL)}; choose --metric of its own: {known}")
    families = _families([Result(folder.name, spec["seed"], spec, series[chosen]) for folder, spec, series in read])
    shared = sorted(set.intersection(*(set(result.values) for family in families for result in family.results)))
    if not shared:
        raise DataError(f"the runs have no step with {chosen} in common; compare runs with the same evaluation.every")
    lines = [f"{chosen} at step {shared[-1]:,}", "", *_summaries(families, shared[-1], chosen)]
    lines += [f"  {family.letter}: {_named(family, families[0])}" for family in families]
    lines += ["", *_bands(families, shared, chosen)] if len(shared) > 1 else []
    return [*lines, "", *_verdicts(families, shared[-1], lower)] if len(families) > 1 else lines


def _read(folder: Path, stage: str) -> tuple[dict[str, Any], dict[str, dict[int, float]]]:
    """A run's spec, and the values of each metric of a stage by step."""
    from penstock.config.spec import plain
    from penstock.runtime.folder import RunFolder

    found = RunFolder(folder)
    spec = plain(found.read())
    index = LogIndex(found.events)
    index.refresh()
    name = stage or spec["stages"][-1]["name"]
    if name not in index.stages:
        raise DataError(f"{folder}: no stage {name!r} in its log; there are: {', '.join(index.stages) or 'none yet'}")
    columns = {metric: series.columns() for metric, series in index.stages[name].series.items()}
    return spec, {
        metric: {int(step): float(value) for step, value in zip(*column, strict=True) if np.isfinite(value)}
        for metric, column in columns.items()
    }


def _families(results: Iterable[Result]) -> list[Family]:
    """Results by what their specs have in common. Raises DataError for one seed twice: it would count as two."""
    found: dict[str, list[Result]] = {}
    for result in results:
        members = found.setdefault(family_of(result.spec), [])
        if same := next((other for other in members if other.seed == result.seed), None):
            raise DataError(f"{same.name} and {result.name} have the same spec and seed {result.seed}; leave one of them out")
        members.append(result)
    if len(found) > MOST_FAMILIES:
        raise DataError(f"{len(found)} families of runs that differ in more than their seed; compare at most {MOST_FAMILIES}")
    return [Family(chr(ord("A") + place), tuple(members)) for place, members in enumerate(found.values())]


def _named(family: Family, first: Family) -> str:
    """The runs of a family, and how its spec differs from that of the first one."""
    runs = ", ".join(result.name for result in family.results)
    specs = [
        json.loads(json.dumps({name: value for name, value in one.results[0].spec.items() if name not in ("name", "seed")}))
        for one in (first, family)
    ]
    changed = difference(*specs)
    more = f", and {len(changed) - 4} more" if len(changed) > 4 else ""
    return f"{runs}; {', '.join(changed[:4])}{more}" if changed else runs


def _summaries(families: Sequence[Family], step: int, metric: str) -> list[str]:
    rows = [("", "seeds", "interquartile mean", "95% interval", "lowest", "highest")]
    for family in families:
        found = summary(family.at(step))
        interval = " to ".join(value_of(metric, value) for value in found.interval) if found.interval else "none of one seed"
        middle, lowest, highest = (value_of(metric, value) for value in (found.middle, found.lowest, found.highest))
        rows.append((family.letter, str(found.count), middle, interval, lowest, highest))
    return _table(rows)


def _bands(families: Sequence[Family], steps: Sequence[int], metric: str) -> list[str]:
    """Interquartile mean, lowest and highest of each family at some steps."""
    places = np.unique(np.linspace(0, len(steps) - 1, BAND_STEPS).round().astype(int))
    rows = [("step", *(f"{steps[place]:,}" for place in places))]
    for family in families:
        values: list[Floats] = [np.asarray(family.at(steps[place]), np.float64) for place in places]
        cells = [f"{value_of(metric, float(interquartile_mean(value_N)))} ({_range(value_N, metric)})" for value_N in values]
        rows.append((family.letter, *cells))
    return _table(rows)


def _range(value_N: Floats, metric: str) -> str:
    return f"{value_of(metric, float(value_N.min()))} to {value_of(metric, float(value_N.max()))}"


def _verdicts(families: Sequence[Family], step: int, lower: bool) -> list[str]:
    """A line for each pair of families; p-values are corrected for the number of pairs."""
    pairs = list(combinations(families, 2))
    sign = -1.0 if lower else 1.0
    lines = []
    for first, second in pairs:
        ours, theirs = ([sign * value for value in family.at(step)] for family in (first, second))
        found = compare(ours, theirs, pairs=len(pairs))
        numbers = _numbers(first.letter, second.letter, found, sign)
        lines.append(f"{_claim(first.letter, second.letter, found, len(pairs))} {numbers}")
    return lines


def _claim(first: str, second: str, found: Comparison, pairs: int) -> str:
    if found.verdict == "too few seeds":
        return (
            f"{first} and {second}: so few seeds cannot show a difference, however large; run {seeds_needed(pairs)} of each "
            "or more."
        )
    if found.verdict == "undecided":
        return f"{first} and {second}: not shown to differ."
    better, worse = (first, second) if found.verdict == "better" else (second, first)
    return f"{better} is better than {worse}."


def _numbers(first: str, second: str, found: Comparison, sign: float) -> str:
    apart = f"{first} − {second} = {text_of(sign * found.difference)}"
    if found.interval:
        apart += f" ({' to '.join(text_of(value) for value in sorted(sign * value for value in found.interval))})"
    return f"{apart}, p = {found.p_value:.2g}; a run of {first} beats one of {second} in {found.chance:.0%} of the pairs"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
