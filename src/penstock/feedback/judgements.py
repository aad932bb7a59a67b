"""From the log to numbers: what each judgement says about two responses, or about one.

A vote says one thing, a ranking or a rating of K responses says K (K - 1) / 2: which of each two is better.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.feedback.records import JUDGEMENT, JUDGEMENTS, Event, Task


class Unit(NamedTuple):
    """What was compared: two responses of a task, by their indices. A repeat's unit is its origin's."""

    task: str
    first: int
    second: int


@dataclass(frozen=True)
class Comparison:
    """What one annotator said about two responses of one item."""

    unit: Unit
    task: str
    annotator: str
    preference: float
    """Above 0: the first response is better; 0: a tie. From -3 to 3 in votes and ratings, -1 to 1 in rankings."""
    both_bad: bool
    side: int
    """1 if the first response was shown before (left of) the second, -1 after, 0 unknown."""
    latency: float
    """Seconds; -1 where unknown."""
    characters: int
    """Length of everything that was shown."""
    sequence: int
    time: float
    purpose: str
    strategy: str

    @property
    def sign(self) -> int:
        """1, 0 or -1: for the first response, a tie, for the second."""
        return (self.preference > 0) - (self.preference < 0)


def comparisons(events: Iterable[Event], tasks: Mapping[str, Task], axis: str = "overall") -> list[Comparison]:
    """The comparisons in judgements in force (``State.judgements``), on one axis.

    A vote's and a ranking's own preference counts for ``overall``; other axes are read from a vote's ``axes`` and a
    rating's ``scores``. Judgements that say nothing of the axis are left out.
    """
    found: list[Comparison] = []
    for event in events:
        if event.kind in JUDGEMENTS:
            found += _of_event(event, tasks[event.task], axis)
    return found


def _of_event(event: Event, task: Task, axis: str) -> Iterator[Comparison]:
    characters = len(task.item.prompt) + sum(len(response.text) for response in task.item.responses)
    place = {response: place for place, response in enumerate(event.order)}
    for first, second in combinations(range(len(task.item.responses)), 2):
        preference = _preference(event.kind, event.body, task, axis, first, second)
        if preference is None:
            continue
        side = 0 if not place else 1 if place[first] < place[second] else -1
        yield Comparison(
            unit=Unit(task.origin or event.task, first, second),
            task=event.task,
            annotator=event.annotator,
            preference=preference,
            both_bad=bool(event.body.get("both_bad", False)),
            side=side,
            latency=event.latency,
            characters=characters,
            sequence=event.sequence,
            time=event.time,
            purpose=task.purpose,
            strategy=task.strategy,
        )


def _preference(kind: str, body: Mapping[str, Any], task: Task, axis: str, first: int, second: int) -> float | None:
    if kind == "vote":
        return float(body["preference"]) if axis == "overall" else body["axes"].get(axis)
    if kind == "ranking":
        ranks = body["ranks"]
        return float(np.sign(ranks[second] - ranks[first])) if axis == "overall" else None
    scores = body["scores"].get(axis)
    if scores is None:
        return None
    low, high = task.scale
    return 3.0 * (scores[first] - scores[second]) / (high - low)


def gold_preference(task: Task, unit: Unit) -> float | None:
    """What the right judgement of a gold task says about a unit; None for other tasks."""
    if task.gold is None:
        return None
    return _preference(JUDGEMENT[task.form], {"axes": {}, **task.gold}, task, "overall", unit.first, unit.second)


@dataclass(frozen=True)
class Rating:
    """What one annotator gave one response on one axis."""

    task: str
    response: int
    annotator: str
    value: float
    sequence: int


def ratings(events: Iterable[Event], tasks: Mapping[str, Task], axis: str = "overall") -> list[Rating]:
    """The ratings in judgements in force, on one axis."""
    found = []
    for event in events:
        values = event.body["scores"].get(axis, ()) if event.kind == "rating" else ()
        task = tasks[event.task].origin or event.task
        found += [Rating(task, place, event.annotator, float(v), event.sequence) for place, v in enumerate(values)]
    return found


def table(
    cells: Iterable[tuple[Any, str, float]],
) -> tuple[list[Any], list[str], NDArray[np.float64]]:
    """Units, annotators and the values ``[A, U]`` of (unit, annotator, value); NaN where nothing was said.

    Of two values of one annotator for one unit (a repeat) the first one stays.
    """
    known = list(cells)
    units, annotators = list(dict.fromkeys(unit for unit, _, _ in known)), sorted({name for _, name, _ in known})
    column = {unit: index for index, unit in enumerate(units)}
    row = {name: index for index, name in enumerate(annotators)}
    value_AU = np.full((len(annotators), len(units)), np.nan)
    for unit, name, value in known:
        if np.isnan(value_AU[row[name], column[unit]]):
            value_AU[row[name], column[unit]] = value
    return units, annotators, value_AU


def sign_table(found: Sequence[Comparison]) -> tuple[list[Unit], list[str], NDArray[np.float64]]:
    """:func:`table` of signs (1, 0, -1), the earliest judgement of each annotator."""
    ordered = sorted(found, key=lambda comparison: comparison.sequence)
    return table((comparison.unit, comparison.annotator, float(comparison.sign)) for comparison in ordered)
