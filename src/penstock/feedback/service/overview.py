"""A store in numbers, for administrators: progress, each annotator, agreement, votes a day."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.feedback import projects
from penstock.feedback.errors import FeedbackError
from penstock.feedback.exchange.snapshot import LABELLED, Labels, Snapshot, snapshot
from penstock.feedback.judgements import Comparison, Rating, Unit, comparisons, sign_table, table
from penstock.feedback.quality.agreement import Level, alpha_of_counts, bootstrap_interval, value_counts
from penstock.feedback.quality.reliability import AnnotatorQuality, Share, assess
from penstock.feedback.records import DEFAULT, Annotator, Event
from penstock.feedback.store import Store

BOOTSTRAP = 200
"""Draws of an interval of agreement."""
MOST_UNITS = 2000
"""Units that agreement is computed from: the newest ones, so that a large store costs no more than a small one."""
SITTING_SECONDS = 300.0
"""A longer time between two answers is a pause, and counts for nobody's speed."""
DAYS = 60
"""Days of the chart of votes."""


def known(value: float) -> float | None:
    return round(value, 6) if math.isfinite(value) else None


def interval(ends: tuple[float, float]) -> list[float] | None:
    low, high = (known(end) for end in ends)
    return None if low is None or high is None else [low, high]


def share(of: Share) -> dict[str, Any] | None:
    """A share with its interval; null of nothing."""
    return {"right": of.right, "of": of.of, "value": known(of.value), "interval": interval(of.interval)} if of.of else None


def overview(store: Store, project: str = DEFAULT) -> dict[str, Any]:
    """A project at once, from one state of the log, as JSON: numbers that are not known are null, days are of UTC.

    Imported labels are counted apart: they are nobody's progress and have no pace.
    It reads the whole log: run it where it may take a while.
    """
    taken, progress = snapshot(store, project=project), store.counts(project)
    with store.database.read() as connection:
        members = {*projects.members(connection, project), *(event.annotator for event in taken.state.standing.values())}
    people = [who for who in store.annotators() if who.name in members]
    judged, kinds = taken.state.judgements(), Counter(event.kind for event in taken.state.standing.values())
    brought = [event for event in judged if taken.natures[event.annotator] == "imported"]
    given = [event for event in judged if taken.natures[event.annotator] != "imported"]
    quality = {one.annotator: one for part in apart(taken) for one in assess(*part)}
    done, hourly = Counter(event.annotator for event in judged), speeds(given)
    elsewhere = {event.task for event in brought} - {event.task for event in given}
    imported: Counter[str] = Counter(taken.tasks[task].purpose for task in elsewhere)
    labels: Counter[str] = Counter(taken.tasks[event.task].purpose for event in brought)
    return {
        "events": taken.until,
        "progress": [
            {"purpose": purpose, "tasks": tasks, "open": count.open, "judgements": count.judgements - labels[purpose]}
            for purpose, count in sorted(progress.items())
            if (tasks := count.tasks - imported[purpose])
        ],
        "imported": len(brought),
        "annotators": [
            person(who, quality.get(who.name, AnnotatorQuality(who.name)))
            | {"done": done[who.name], "per_hour": known(hourly.get(who.name, math.nan))}
            for who in people
        ],
        "agreement": [made for axis in axes_of(taken) for made in agreements(taken, axis)],
        "days": [{"day": day, "votes": votes} for day, votes in votes_a_day(given)],
        "skipped": kinds["skip"],
        "flagged": kinds["flag"],
    }


def apart(taken: Snapshot) -> Iterator[tuple[list[Comparison], dict[Unit, float], list[Rating]]]:
    """What ``assess`` takes: once of those whose votes exports count, and once of simulated annotators and judges."""
    found = comparisons(taken.state.judgements(), taken.tasks)
    rated = [one for axis in axes_of(taken) for one in taken.rated(axis)]
    counted = {name for name, nature in taken.natures.items() if nature in Labels().natures}
    for names in (counted, taken.natures.keys() - counted):
        yield [one for one in found if one.annotator in names], taken.gold(), [one for one in rated if one.annotator in names]


def person(who: Annotator, found: AnnotatorQuality) -> dict[str, Any]:
    """An annotator and how they judge."""
    return {
        **{name: getattr(who, name) for name in ("name", "role", "nature", "enabled")},
        **{name: share(getattr(found, name)) for name in ("gold", "consistency", "left", "hasty")},
        "accuracy": known(found.accuracy),
        "weight": known(found.weight),
        "concerns": list(found.concerns),
    }


def axes_of(taken: Snapshot) -> list[str]:
    """``overall`` first, then every other axis that a task asks for."""
    return list(dict.fromkeys(["overall", *(axis for task in taken.tasks.values() for axis in task.axes)]))


def require_axis(taken: Snapshot, axis: str) -> None:
    """Raises FeedbackError: no question asks for that axis."""
    if axis not in axes_of(taken):
        raise FeedbackError(f"axis {axis!r:.60}: no question asks for it; there are: {', '.join(axes_of(taken))}")


def agreements(taken: Snapshot, axis: str) -> list[dict[str, Any]]:
    """Krippendorff's alpha on one axis of each form of answer that several people have given: of pairs and of rankings by signs
    (first, tie, second), of ratings by their distance. Gold and repeats are left out: the one is chosen to be easy, the other
    is of one person."""
    compared = [one for one in comparisons(taken.state.judgements(), taken.tasks, axis) if one.purpose in LABELLED]
    pairs, rankings = (sign_table([one for one in compared if one.task.form == form])[2] for form in ("pair", "ranking"))
    ratings = table((one.unit, one.annotator, one.value) for one in taken.rated(axis) if one.purpose in LABELLED)[2]
    made = [
        agreement(axis, pairs, "nominal"),
        agreement(f"{axis} (rankings)", rankings, "nominal"),
        agreement(f"{axis} (ratings)", ratings, "interval"),
    ]
    return [one for one in made if one["units"]] or made[:1]


def agreement(axis: str, value_AU: NDArray[np.float64], level: Level) -> dict[str, Any]:
    """Krippendorff's alpha, its bootstrap interval, and of how many units: those that two or more have judged."""
    shared_AU = value_AU[:, (~np.isnan(value_AU)).sum(0) >= 2][:, -MOST_UNITS:]
    if not shared_AU.size:
        return {"axis": axis, "alpha": None, "interval": None, "units": 0}
    count_UK, value_K = value_counts(shared_AU)
    ends = bootstrap_interval(count_UK.T, lambda drawn_KU: alpha_of_counts(drawn_KU.T, value_K, level), samples=BOOTSTRAP)
    alpha = known(alpha_of_counts(count_UK, value_K, level))
    return {"axis": axis, "alpha": alpha, "interval": interval(ends), "units": len(count_UK)}


def speeds(judged: Sequence[Event]) -> dict[str, float]:
    """Answers an hour of each annotator, counted over the times between two answers in one sitting; NaN for one answer."""
    times: dict[str, list[float]] = {}
    for event in judged:
        times.setdefault(event.annotator, []).append(event.time)
    made = {}
    for name, mine in times.items():
        between = [after - before for before, after in pairwise(mine) if 0 <= after - before <= SITTING_SECONDS]
        made[name] = 3600 * len(between) / sum(between) if sum(between) > 0 else math.nan
    return made


def votes_a_day(judged: Sequence[Event]) -> list[tuple[str, int]]:
    """Judgements in force of each day that has any, the newest ``DAYS`` of them."""
    counted = Counter(datetime.fromtimestamp(event.time, UTC).date().isoformat() for event in judged)
    return sorted(counted.items())[-DAYS:]
