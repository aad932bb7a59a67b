"""A store in numbers, for administrators: progress, each annotator, agreement, votes a day."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from penstock.feedback.exchange.snapshot import Snapshot, snapshot
from penstock.feedback.judgements import Comparison, Unit, comparisons, gold_preference, sign_table
from penstock.feedback.quality.agreement import alpha_of_counts, bootstrap_interval, value_counts
from penstock.feedback.quality.reliability import AnnotatorQuality, Share, assess
from penstock.feedback.records import Annotator, Event
from penstock.feedback.store import Store

BOOTSTRAP = 200
"""Draws of an interval of agreement."""
MOST_UNITS = 2000
"""Units that agreement is computed from: the newest ones, so that a large store costs no more than a small one."""
SITTING_SECONDS = 300.0
"""A longer time between two answers is a pause, and counts for nobody's speed."""
DAYS = 60
"""Days of the chart of votes."""


NONE = Share(0, 0)
NOTHING = AnnotatorQuality("", 0, NONE, NONE, NONE, NONE, math.nan, math.nan, ())
"""What is known of somebody who has not judged."""


def known(value: float) -> float | None:
    return round(value, 6) if math.isfinite(value) else None


def interval(ends: tuple[float, float]) -> list[float] | None:
    low, high = (known(end) for end in ends)
    return None if low is None or high is None else [low, high]


def share(of: Share) -> dict[str, Any] | None:
    """A share with its interval; null of nothing."""
    return {"right": of.right, "of": of.of, "value": known(of.value), "interval": interval(of.interval)} if of.of else None


def overview(store: Store) -> dict[str, Any]:
    """Everything at once, from one state of the log, as JSON: numbers that are not known are null, days are of UTC.

    It reads the whole log: run it where it may take a while.
    """
    taken, people, progress = snapshot(store), store.annotators(), store.counts()
    judged, kinds = taken.state.judgements(), Counter(event.kind for event in taken.state.standing.values())
    found = comparisons(judged, taken.tasks)
    quality = {one.annotator: one for one in assess(found, gold_of(taken, found))}
    done, hourly = Counter(event.annotator for event in judged), speeds(judged)
    return {
        "events": taken.until,
        "progress": [{"purpose": purpose, **vars(count)} for purpose, count in sorted(progress.items())],
        "annotators": [
            person(who, quality.get(who.name, NOTHING))
            | {"done": done[who.name], "per_hour": known(hourly.get(who.name, math.nan))}
            for who in people
        ],
        "agreement": [agreement(taken, axis) for axis in axes_of(taken)],
        "days": [{"day": day, "votes": votes} for day, votes in votes_a_day(judged)],
        "skipped": kinds["skip"],
        "flagged": kinds["flag"],
    }


def person(who: Annotator, found: AnnotatorQuality) -> dict[str, Any]:
    """An annotator and how they judge."""
    return {
        "name": who.name,
        "role": who.role,
        "nature": who.nature,
        "enabled": who.enabled,
        "gold": share(found.gold),
        "consistency": share(found.consistency),
        "left": share(found.left),
        "hasty": share(found.hasty),
        "accuracy": known(found.accuracy),
        "weight": known(found.weight),
        "concerns": list(found.concerns),
    }


def gold_of(taken: Snapshot, found: Iterable[Comparison]) -> dict[Unit, float]:
    """The right preference of every gold unit that was judged."""
    right = {}
    for unit in dict.fromkeys(comparison.unit for comparison in found if comparison.purpose == "gold"):
        preference = gold_preference(taken.tasks[unit.task], unit)
        if preference is not None:
            right[unit] = preference
    return right


def axes_of(taken: Snapshot) -> list[str]:
    """``overall`` first, then every other axis that a task asks for."""
    return list(dict.fromkeys(["overall", *(axis for task in taken.tasks.values() for axis in task.axes)]))


def agreement(taken: Snapshot, axis: str) -> dict[str, Any]:
    """Krippendorff's alpha of signs (first, tie, second) on one axis, its bootstrap interval, and the units that two or more
    have judged. Gold and repeats are left out: the one is chosen to be easy, the other is of one person.
    """
    found = comparisons(taken.state.judgements(), taken.tasks, axis)
    _, _, sign_AU = sign_table([one for one in found if one.purpose in ("ask", "anchor", "adjudication")])
    shared_AU = sign_AU[:, (sign_AU == sign_AU).sum(0) >= 2][:, -MOST_UNITS:]
    if not shared_AU.size:
        return {"axis": axis, "alpha": None, "interval": None, "units": 0}
    count_UK, value_K = value_counts(shared_AU)
    ends = bootstrap_interval(count_UK.T, lambda sampled_KU: alpha_of_counts(sampled_KU.T, value_K), samples=BOOTSTRAP)
    alpha = known(alpha_of_counts(count_UK, value_K))
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
