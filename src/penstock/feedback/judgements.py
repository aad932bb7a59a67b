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

from penstock.feedback.records import JUDGEMENT, JUDGEMENTS, Event, Item, Task


class Unit(NamedTuple):
    """What was compared: two texts as answers to a prompt, each by its hash (``Item.contents``), in the order of their hashes.

    Every task that asks the same has the same unit: repeats, gold, later rounds, rows imported twice, the other order.
    """

    prompt: str
    first: str
    second: str


def unit_of(item: Item, first: int = 0, second: int = 1) -> tuple[Unit, int]:
    """The unit of two responses of an item, and 1 if the unit has them in this order, -1 if the other way round."""
    prompt, texts = item.contents
    one, other = texts[first], texts[second]
    return (Unit(prompt, one, other), 1) if one <= other else (Unit(prompt, other, one), -1)


@dataclass(frozen=True)
class Said:
    """A part of a judgement."""

    event: Event
    task: Task

    @property
    def annotator(self) -> str:
        return self.event.annotator

    @property
    def purpose(self) -> str:
        return self.task.purpose

    @property
    def characters(self) -> int:
        """Length of everything that was shown."""
        return len(self.task.item.prompt) + sum(map(len, self.task.item.texts))


@dataclass(frozen=True)
class Comparison(Said):
    """What one annotator said about two responses of one item."""

    unit: Unit
    responses: tuple[int, int]
    """Indices in the task's item of the unit's first and second response."""
    preference: float
    """Above 0: the first response is better; 0: a tie. From -3 to 3 in votes and ratings, -1 to 1 in rankings."""
    side: int
    """1 if the unit's first response was shown before (left of) the second, -1 after, 0 unknown."""

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
    place = {response: place for place, response in enumerate(event.order)}
    for first, second in combinations(range(len(task.item.responses)), 2):
        unit, turn = unit_of(task.item, first, second)
        preference = _preference(event.kind, event.body, task, axis, first, second)
        if preference is None or unit.first == unit.second:  # nothing is learnt from a text compared with itself
            continue
        side = 0 if not place else turn if place[first] < place[second] else -turn
        responses = (first, second) if turn > 0 else (second, first)
        yield Comparison(event, task, unit, responses, turn * preference, side)


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


def gold_units(tasks: Iterable[Task], axis: str = "overall") -> dict[Unit, float]:
    """The right preference of every unit of gold tasks; above 0: the unit's first response is better."""
    right = {}
    for task in tasks:
        for first, second in combinations(range(len(task.item.responses)), 2) if task.gold is not None else ():
            unit, turn = unit_of(task.item, first, second)
            preference = _preference(JUDGEMENT[task.form], {"axes": {}, **(task.gold or {})}, task, axis, first, second)
            if preference is not None:
                right[unit] = turn * preference
    return right


def once(found: Iterable[Comparison]) -> list[Comparison]:
    """One comparison of each annotator about each unit: an adjudication before others, else the earliest; repeats never."""
    kept: dict[tuple[Unit, str], Comparison] = {}
    for comparison in sorted(found, key=lambda one: (one.purpose != "adjudication", one.event.sequence)):
        if comparison.purpose != "repeat":
            kept.setdefault((comparison.unit, comparison.annotator), comparison)
    return sorted(kept.values(), key=lambda one: one.event.sequence)


@dataclass(frozen=True)
class Rating(Said):
    """What one annotator gave one response on one axis."""

    unit: tuple[str, str]
    """The prompt and the response, by their hashes (``Item.contents``)."""
    response: int
    axis: str
    value: float
    known: float | None
    """The right value, of gold."""

    @property
    def alone(self) -> bool:
        """Whether the task has no other response: of several, every two are a comparison as well."""
        return len(self.task.item.responses) == 1


def ratings(events: Iterable[Event], tasks: Mapping[str, Task], axis: str = "overall") -> list[Rating]:
    """The ratings in judgements in force, on one axis."""
    found = []
    for event in events:
        task = tasks[event.task]
        values = event.body["scores"].get(axis, ()) if event.kind == "rating" else ()
        known = (task.gold or {}).get("scores", {}).get(axis, [None] * len(values))
        prompt, texts = task.item.contents
        for place, value in enumerate(values):
            found.append(Rating(event, task, (prompt, texts[place]), place, axis, float(value), known[place]))
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
    ordered = sorted(found, key=lambda comparison: comparison.event.sequence)
    return table((comparison.unit, comparison.annotator, float(comparison.sign)) for comparison in ordered)
