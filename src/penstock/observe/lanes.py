"""Reading what the roles of a run recorded (``core/spans.py``), also while it goes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.core.files import json_lines
from penstock.core.spans import Span

KNOWN = ("name", "start", "end", "busy", "count")
ROLES = ("learner", "generator", "reward", "reference", "evaluation")
"""Kinds of roles in the order in which they are shown."""
LARGEST = 1e12
"""No time in seconds and no count is larger; what is stems from a damaged file."""


@dataclass(frozen=True)
class Lane:
    """What was recorded of a role: its spans in order of their end, and (start, end) of each process that carried it out."""

    role: str
    spans: tuple[Span, ...]
    lives: tuple[tuple[float, float], ...]


def read_lanes(folder: Path) -> list[Lane]:
    """The lanes of a run from its ``spans`` folder: kinds of roles in their order, then by number; none where nothing is
    recorded.

    The life of a process that was killed, or still runs, reaches to its last span.
    """
    return lanes_of(folder.glob("*.jsonl"))


def lanes_of(files: Iterable[Path]) -> list[Lane]:
    """The lanes in some files, in the same order."""
    found = [read_lane(path) for path in sorted(files, key=_order)]
    return [lane for lane in found if lane.spans or lane.lives]


def _order(path: Path) -> tuple[int, str, int]:
    kind, _, number = path.stem.rpartition("-") if path.stem[-1:].isdecimal() else (path.stem, "", "")
    return ROLES.index(kind) if kind in ROLES else len(ROLES), kind, int(number) if number.isdecimal() else -1


def read_lane(path: Path) -> Lane:
    """One role's file. A line that a kill cut short, or that holds no span, is passed over."""
    spans: list[Span] = []
    lives: list[list[float]] = []
    for record in json_lines(path):
        if not isinstance(record, dict):
            continue
        if (opened := _time(record, "opened")) is not None:
            lives.append([opened, opened])
        elif (closed := _time(record, "closed")) is not None and lives:
            lives[-1][1] = max(lives[-1][1], closed)
        elif (span := _span(record)) is not None:
            spans.append(span)
            if not lives:
                lives.append([span.start, span.end])
            lives[-1] = [min(lives[-1][0], span.start), max(lives[-1][1], span.end)]
    role = path.stem.encode("utf-8", "replace").decode()
    return Lane(role, tuple(spans), tuple((start, end) for start, end in lives))


def _time(record: Mapping[str, Any], name: str) -> float | None:
    value = record.get(name)
    return float(value) if isinstance(value, int | float) and abs(value) < LARGEST else None


def _span(record: Mapping[str, Any]) -> Span | None:
    name, start, end = record.get("name"), _time(record, "start"), _time(record, "end")
    if not isinstance(name, str) or not (name.isascii() and name.isidentifier()) or start is None or end is None or end < start:
        return None
    busy, count = _time(record, "busy"), _time(record, "count")
    fields = {key: value for key, value in record.items() if key not in KNOWN}
    return Span(name, start, end, end - start if busy is None else busy, 1 if count is None else int(count), fields)
