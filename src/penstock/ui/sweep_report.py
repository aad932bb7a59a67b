"""The report of a sweep: one self-contained HTML page from its ``results.json`` and the logs of its runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from penstock.core.files import replaced
from penstock.ui.curves import limits, nice_ticks, tick_label
from penstock.ui.live.index import LogIndex
from penstock.ui.live.series import band_of, copied
from penstock.ui.metrics import shown, text_of, value_of
from penstock.ui.report import read_json, rendered
from penstock.ui.text import clean

COLOURED = 8
"""Trials, the best ones, that have a colour, a band and a place in the legend."""
LINES, ROWS = 200, 500
"""Most trials that are drawn, and listed; the best ones."""
POINTS = 200
LEFT, RIGHT, TOP, BOTTOM = 64.0, 980.0, 14.0, 300.0
AXES_LEFT, AXES_RIGHT, AXES_TOP, AXES_BOTTOM = 70.0, 930.0, 40.0, 290.0


def write_sweep_report(folder: Path) -> Path:
    """Write ``sweep.html`` into a sweep's folder and give its path.

    Raises:
        DataError: ``results.json`` is missing or damaged.
    """
    found = read_json(folder / "results.json")
    trials = ranked(found["trials"], sign_of(found))
    counts = {state: sum(one["state"] == state for one in trials) for state in dict.fromkeys(one["state"] for one in trials)}
    page = rendered(
        "sweep.html.jinja",
        name=folder.resolve().name,
        found=found,
        label=shown(found["objective"]).label,
        counts=counts,
        runs=sum(len(one["runs"]) for one in trials),
        importance=[(name, f"{share:.0%}", round(100 * share, 1)) for name, share in found["importance"].items()],
        axes=parallel_axes(found["dimensions"], trials, found["objective"]),
        curves=curves(folder, found, trials),
        rows=[row(one, found["objective"]) for one in trials[:ROWS]],
        copies=[{**one, "values": named(one["values"])} for one in found["copies"]],
    )
    target = folder / "sweep.html"
    with replaced(target) as out:
        out.write(page)
    return target


def best_line(folder: Path) -> str:
    """The best that a sweep has found, with the flags that make it and where it is; of a population, of its last slice.

    Raises:
        DataError: ``results.json`` is missing or damaged.
    """
    found = read_json(folder / "results.json")
    last = max((one["slice"] for one in found["trials"] if "slice" in one), default=0)
    best = ranked([one for one in found["trials"] if one.get("slice", last) == last], sign_of(found))[:1]
    if not best or best[0]["state"] != "complete":
        return "nothing is complete yet"
    words = " ".join(f"--{name} {value}" for name, value in best[0]["values"].items())
    value, place = text_of(best[0]["objective"]), folder / best[0]["runs"][0]
    return f"best: {title(best[0])}, {found['objective']} {value}: {words}, in {place}"


def sign_of(found: Mapping[str, Any]) -> float:
    """What makes larger objectives better."""
    return -1.0 if found["direction"] == "minimize" else 1.0


def ranked(trials: Sequence[Mapping[str, Any]], sign: float) -> list[dict[str, Any]]:
    """Trials from the best to the worst, complete ones first; ``rank`` counts from 0."""
    order = {"complete": 0, "running": 1, "pruned": 2}

    def key(one: Mapping[str, Any]) -> tuple[int, float]:
        value = one["objective"]
        return order.get(one["state"], 3), math.inf if value is None else -sign * value

    return [{**one, "rank": rank} for rank, one in enumerate(sorted(trials, key=key))]


def title(one: Mapping[str, Any]) -> str:
    """What a trial is called."""
    return f"member {one['member']}, slice {one['slice']}" if "member" in one else f"trial {one['number']}"


def named(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value if isinstance(value, str) else text_of(value)}" for name, value in values.items())


def row(one: Mapping[str, Any], objective: str) -> dict[str, Any]:
    """A trial as a line of the table."""
    value = one["objective"]
    return {
        "title": title(one),
        "state": one["state"],
        "objective": "–" if value is None else value_of(objective, value),
        "values": [item if isinstance(item, str) else text_of(item) for item in one["values"].values()],
        "error": clean(one["error"], 400),
        "runs": ", ".join(one["runs"]),
        "colour": one["rank"] if one["rank"] < COLOURED and one["state"] != "fail" else None,
    }


def parallel_axes(
    dimensions: Sequence[Mapping[str, Any]], trials: Sequence[Mapping[str, Any]], objective: str
) -> dict[str, Any]:
    """Parallel coordinates: an axis for each dimension and one for the objective, a line for each trial that has one."""
    having = [one for one in trials if one["objective"] is not None and len(one["values"]) == len(dimensions)][:LINES]
    if not having:
        return {}
    low, high = limits([one["objective"] for one in having])
    places = np.linspace(AXES_LEFT, AXES_RIGHT, len(dimensions) + 1).round(1).tolist()
    axes = [axis(one, place) for one, place in zip(dimensions, places, strict=False)]
    marks = nice_ticks(low, high, 5)
    scale = [(height((mark - low) / (high - low)), tick_label(mark, marks)) for mark in marks]
    axes.append({"at": places[-1], "name": shown(objective).label, "ticks": scale})
    lines = []
    for one in reversed(having):  # the best on top
        shares = [share(each, one["values"][each["name"]]) for each in dimensions] + [(one["objective"] - low) / (high - low)]
        path = "".join(
            f"{'L' if at else 'M'}{x:.1f} {height(y):.1f}" for at, (x, y) in enumerate(zip(places, shares, strict=True))
        )
        lines.append({"path": path, "title": f"{title(one)}: {value_of(objective, one['objective'])}", **looks(one)})
    return {"axes": axes, "lines": lines}


def looks(one: Mapping[str, Any]) -> dict[str, Any]:
    """How a trial's line is drawn: in a colour of its own if it is one of the best."""
    return {"colour": one["rank"] if one["rank"] < COLOURED and one["state"] == "complete" else None}


def height(share: float) -> float:
    return round(AXES_BOTTOM - (AXES_BOTTOM - AXES_TOP) * share, 1)


def axis(one: Mapping[str, Any], place: float) -> dict[str, Any]:
    """An axis of parallel coordinates with its ticks."""
    if one["choices"]:
        ticks = [(height(share(one, choice)), clean(choice, 18)) for choice in one["choices"]]
    elif one["log"]:
        ends = math.ceil(math.log10(one["low"]) - 1e-9), math.floor(math.log10(one["high"]) + 1e-9)
        powers = [10.0**power for power in range(ends[0], ends[1] + 1)]
        ticks = [(height(share(one, mark)), text_of(mark)) for mark in dict.fromkeys([one["low"], *powers, one["high"]])]
    else:
        marks = nice_ticks(one["low"], one["high"], 5, whole=one["whole"])
        ticks = [(height(share(one, mark)), tick_label(mark, marks)) for mark in marks]
    return {"at": place, "name": one["name"], "ticks": ticks}


def share(one: Mapping[str, Any], value: Any) -> float:
    """How far along its axis a value is, from 0 to 1."""
    if one["choices"]:
        return (one["choices"].index(value) + 0.5) / len(one["choices"])
    if one["log"]:
        return math.log(value / one["low"]) / math.log(one["high"] / one["low"])
    return float((value - one["low"]) / (one["high"] - one["low"]))


def curves(folder: Path, found: Mapping[str, Any], trials: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The objective over the steps: the median of each trial's runs, and for the best ones the band from lowest to highest.

    Of a population, the lineages that are alive: what each member's latest slice was copied from, and its own steps.
    """
    if found["population"]:
        latest = {one["member"]: one for one in sorted(trials, key=lambda one: one["slice"])}
        trials = [{**one, "rank": rank} for rank, one in enumerate(sorted(latest.values(), key=lambda one: one["rank"]))]
    drawn = []
    for one in trials[:LINES]:
        members = [series for run in one["runs"] if (series := objective_of(folder / run, found)) is not None]
        if not members:
            continue
        single = {"steps": members[0][0].tolist(), "median": members[0][1].tolist()}
        drawn.append((one, band_of(members, POINTS) or single))
    if not drawn:
        return {}
    every = [value for _, band in drawn for key in ("median", "low", "high") for value in band.get(key, ())]
    low, high = limits(every)
    final = max(max(band["steps"]) for _, band in drawn) or 1

    def x_of(step: float) -> float:
        return round(LEFT + (RIGHT - LEFT) * step / final, 1)

    def y_of(value: float) -> float:
        return round(BOTTOM - (BOTTOM - TOP) * (value - low) / (high - low), 1)

    def path(steps: Sequence[float], values: Sequence[float]) -> str:
        return "".join(f"{'L' if at else 'M'}{x_of(x)} {y_of(y)}" for at, (x, y) in enumerate(zip(steps, values, strict=True)))

    lines = []
    for one, band in reversed(drawn):
        area = ""
        if "low" in band:
            area = path(band["steps"], band["high"]) + "L" + path(band["steps"][::-1], band["low"][::-1])[1:] + "Z"
        lines.append({"path": path(band["steps"], band["median"]), "area": area, "title": title(one), **looks(one)})
    x_marks, y_marks = nice_ticks(0, final, 6, whole=True), nice_ticks(low, high, 5)
    share = shown(found["objective"]).share
    return {
        "lines": lines,
        "x_ticks": [(x_of(mark), tick_label(mark, x_marks)) for mark in x_marks],
        "y_ticks": [(y_of(mark), tick_label(mark, y_marks, share)) for mark in y_marks],
        "legend": [line for line in reversed(lines) if line["colour"] is not None],
    }


def objective_of(run: Path, found: Mapping[str, Any]) -> Any:
    """(steps, values) of the objective in a run's last stage; None where it has none yet."""
    index = LogIndex(run / "events.jsonl")
    index.refresh()
    stage = index.stages.get(found["stage"])
    series = copied(stage).get(found["objective"]) if stage is not None else None
    return series if series is not None and len(series[0]) else None
