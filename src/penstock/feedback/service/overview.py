"""A store in numbers, for administrators: progress, each annotator, agreement, votes a day."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from penstock.feedback.exchange.snapshot import Snapshot, snapshot
from penstock.feedback.judgements import Comparison, Unit, comparisons, gold_preference, sign_table
from penstock.feedback.quality.agreement import alpha_of_counts, bootstrap_interval, value_counts
from penstock.feedback.quality.reliability import AnnotatorQuality, Share, assess
from penstock.feedback.records import Annotator, Event
from penstock.feedback.state import State, fold
from penstock.feedback.store import Count, Store

BOOTSTRAP = 200
"""Draws of an interval of agreement."""
MOST_UNITS = 2000
"""Units that agreement is computed from: the newest ones, so that a large store costs no more than a small one."""
SITTING_SECONDS = 300.0
"""A longer time between two answers is a pause, and counts for nobody's speed."""
DAYS = 60
"""Days of the chart of votes."""


@dataclass(frozen=True)
class Agreement:
    """Krippendorff's alpha of signs (first, tie, second) on one axis, with its bootstrap interval."""

    axis: str
    alpha: float
    interval: tuple[float, float]
    units: int
    """Units that two or more have judged."""


@dataclass(frozen=True)
class Overview:
    """What :func:`overview` finds. Days are of UTC."""

    events: int
    progress: dict[str, Count]
    people: list[Annotator]
    quality: dict[str, AnnotatorQuality]
    done: dict[str, int]
    per_hour: dict[str, float]
    """Answers in an hour of sitting at it; NaN for who has not answered twice."""
    agreement: list[Agreement]
    days: list[tuple[str, int]]
    skipped: int
    flagged: int

    def plain(self) -> dict[str, Any]:
        """As JSON; numbers that are not known are null."""
        return {
            "events": self.events,
            "progress": [{"purpose": purpose, **vars(count)} for purpose, count in sorted(self.progress.items())],
            "annotators": [self._person(who) for who in self.people],
            "agreement": [
                {"axis": a.axis, "alpha": known(a.alpha), "interval": interval(a.interval), "units": a.units}
                for a in self.agreement
            ],
            "days": [{"day": day, "votes": votes} for day, votes in self.days],
            "skipped": self.skipped,
            "flagged": self.flagged,
        }

    def _person(self, who: Annotator) -> dict[str, Any]:
        found = self.quality.get(who.name)
        return {
            "name": who.name,
            "role": who.role,
            "nature": who.nature,
            "enabled": who.enabled,
            "done": self.done.get(who.name, 0),
            "per_hour": known(self.per_hour.get(who.name, math.nan)),
            "gold": share(found.gold) if found else None,
            "consistency": share(found.consistency) if found else None,
            "left": share(found.left) if found else None,
            "hasty": share(found.hasty) if found else None,
            "accuracy": known(found.accuracy) if found else None,
            "weight": known(found.weight) if found else None,
            "concerns": list(found.concerns) if found else [],
        }


def known(value: float) -> float | None:
    return round(value, 6) if math.isfinite(value) else None


def interval(ends: tuple[float, float]) -> list[float] | None:
    low, high = (known(end) for end in ends)
    return None if low is None or high is None else [low, high]


def share(of: Share) -> dict[str, Any] | None:
    """A share with its interval; null of nothing."""
    return {"right": of.right, "of": of.of, "value": known(of.value), "interval": interval(of.interval)} if of.of else None


def overview(store: Store) -> Overview:
    """Everything at once, from one state of the log. It reads the whole log: run it where it may take a while."""
    taken, people, progress = snapshot(store), store.annotators(), store.counts()
    state = fold(taken.events)
    judged = state.judgements()
    found = comparisons(judged, taken.tasks)
    return Overview(
        events=taken.until,
        progress=progress,
        people=people,
        quality={one.annotator: one for one in assess(found, gold_of(taken, found))},
        done=dict(Counter(event.annotator for event in judged)),
        per_hour=speeds(judged),
        agreement=[agreement(taken, state, axis) for axis in axes_of(taken)],
        days=votes_a_day(judged),
        skipped=sum(event.kind == "skip" for event in state.standing.values()),
        flagged=sum(event.kind == "flag" for event in state.standing.values()),
    )


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


def agreement(taken: Snapshot, state: State, axis: str) -> Agreement:
    """How far people agree on one axis, gold and repeats left out: the one is chosen to be easy, the other is of one person."""
    found = comparisons(state.judgements(), taken.tasks, axis)
    _, _, sign_AU = sign_table([one for one in found if one.purpose in ("ask", "anchor", "adjudication")])
    shared_AU = sign_AU[:, (sign_AU == sign_AU).sum(0) >= 2][:, -MOST_UNITS:]
    if not shared_AU.size:
        return Agreement(axis, math.nan, (math.nan, math.nan), 0)
    count_UK, value_K = value_counts(shared_AU)
    ends = bootstrap_interval(count_UK.T, lambda sampled_KU: alpha_of_counts(sampled_KU.T, value_K), samples=BOOTSTRAP)
    return Agreement(axis, alpha_of_counts(count_UK, value_K), ends, len(count_UK))


def speeds(judged: Sequence[Event]) -> dict[str, float]:
    """Answers an hour of each annotator, counted over the times between two answers in one sitting."""
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
