"""The timeline as geometry: a lane per role, coloured by kind. The template draws it; nothing here knows HTML."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.core.spans import Span
from penstock.observe.lanes import Lane
from penstock.observe.timeline import kind_order
from penstock.ui.curves import Tick, nice_ticks, tick_label

WIDTH, LEFT, RIGHT = 1000, 96, 990
"""Width of a drawing and the edges of its lanes, in drawing units."""
COLUMNS, FINE_COLUMNS = RIGHT - LEFT, 4 * (RIGHT - LEFT)
"""Columns of a lane that shows many spans, or few; what is narrower than a column shares it."""
MANY = 500
"""Spans from which on columns are a drawing unit wide, which bounds the size of the page."""
TALL, PITCH, TOP, AXIS = 24, 34, 6, 26
"""Height of a lane, distance between lanes, room above the first and below the last."""
AROUND = 6
"""Training steps on either side of the middle one in the close-up."""
MARKS = 150
"""Most weight updates of a lane that are marked one by one."""
FEW = 60
"""Spans of the learner up to which the whole run is close enough."""


@dataclass(frozen=True)
class Band:
    """What a lane shows of one kind: an SVG path of filled rectangles."""

    kind: str
    path: str


@dataclass(frozen=True)
class LaneView:
    """A lane: its name, its upper edge, (left, width) of the times in which its role was alive, its bands, and the places of
    weight updates, which are too short to be seen otherwise."""

    role: str
    top: float
    lives: tuple[tuple[float, float], ...]
    bands: tuple[Band, ...]
    updates: tuple[float, ...]


@dataclass(frozen=True)
class Picture:
    """A drawing of all lanes over a stretch of time."""

    title: str
    height: int
    lanes: tuple[LaneView, ...]
    ticks: tuple[Tick, ...]
    kinds: tuple[str, ...]


def pictures(lanes: Sequence[Lane]) -> list[Picture]:
    """The whole run and, where it has many steps, a close-up of a few in its middle; none where nothing was recorded."""
    lives = [life for lane in lanes for life in lane.lives]
    if not lives:
        return []
    start, end = min(life[0] for life in lives), max(life[1] for life in lives)
    drawn = [picture(lanes, start, end, start, "the whole run")]
    close = close_up(lanes)
    return [*drawn, picture(lanes, *close, start, f"{2 * AROUND} steps in its middle")] if close else drawn


def close_up(lanes: Sequence[Lane]) -> tuple[float, float] | None:
    """The stretch of some training steps in the middle of a run, of steps on generated batches where there are any."""
    learner = next((lane for lane in lanes if lane.role == "learner"), None)
    if learner is None or len(learner.spans) <= FEW:
        return None
    trained = [span for span in learner.spans if span.name == "train"]
    trained = [span for span in trained if "lag" in span.fields] or trained
    middle = len(trained) // 2
    if len(trained) <= 4 * AROUND:
        return None
    return trained[middle - AROUND].end, trained[middle + AROUND].end


def picture(lanes: Sequence[Lane], start: float, end: float, zero: float, title: str) -> Picture:
    """All lanes between two times; the axis counts from ``zero``."""
    end = max(end, start + 1e-6)
    views = tuple(lane_view(lane, TOP + place * PITCH, start, end) for place, lane in enumerate(lanes))
    kinds = {band.kind for view in views for band in view.bands}
    return Picture(
        title=title,
        height=TOP + len(lanes) * PITCH + AXIS,
        lanes=views,
        ticks=time_ticks(start - zero, end - zero),
        kinds=tuple(sorted(kinds, key=kind_order)),
    )


def time_ticks(start: float, end: float) -> tuple[Tick, ...]:
    """Round times between two, in the unit that suits their distance."""
    span = end - start
    unit, name = next(
        (pair for pair in ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s")) if span >= 2.5 * pair[0]), (1e-3, "ms")
    )
    marks = nice_ticks(start / unit, end / unit, 8)
    return tuple(
        Tick(round(LEFT + (RIGHT - LEFT) * (mark * unit - start) / span, 1), f"{tick_label(mark, marks)} {name}")
        for mark in marks
    )


def lane_view(lane: Lane, top: float, start: float, end: float) -> LaneView:
    """One lane between two times. Kinds that share a column are stacked by the time they take of it; the rest stays empty."""
    scale = (RIGHT - LEFT) / (end - start)
    lives = [(max(a, start), min(b, end)) for a, b in lane.lives if b >= start and a <= end]
    spans = [span for span in lane.spans if span.end >= start and span.start <= end]
    columns = COLUMNS if len(spans) >= MANY else FINE_COLUMNS
    shares = coverage(spans, start, end, columns)
    total = np.maximum(1.0, np.sum(list(shares.values()), axis=0)) if shares else 1.0
    updates = [round(LEFT + (span.start - start) * scale, 1) for span in spans if span.name == "update" and span.start >= start]
    floor = np.zeros(columns)
    bands = []
    for kind in sorted(shares, key=lambda kind: (kind == "wait", kind_order(kind))):
        ceiling = floor + shares[kind] / total
        path = band_path(np.rint(floor * TALL), np.rint(ceiling * TALL), top)
        bands += [Band(kind, path)] if path else []
        floor = ceiling
    return LaneView(
        role=lane.role,
        top=top,
        lives=tuple((round(LEFT + (a - start) * scale, 1), round(max(0.5, (b - a) * scale), 1)) for a, b in lives),
        bands=tuple(bands),
        updates=tuple(updates) if len(updates) <= MARKS else (),
    )


def coverage(spans: Sequence[Span], start: float, end: float, columns: int) -> dict[str, NDArray[np.float64]]:
    """By kind, the share of each column's time that its spans take; a joined span is spread evenly over its time."""
    found: dict[str, NDArray[np.float64]] = {}
    scale = columns / (end - start)
    for span in spans:
        if span.end < start or span.start > end or span.end <= span.start:
            continue
        weight = span.busy / (span.end - span.start)
        low, high = max(0.0, (span.start - start) * scale), min(float(columns), (span.end - start) * scale)
        column_C = found.setdefault(span.name, np.zeros(columns))
        first, last = int(low), min(int(high), columns - 1)
        if first >= last:
            column_C[min(first, columns - 1)] += (high - low) * weight
            continue
        column_C[first] += (first + 1 - low) * weight
        column_C[first + 1 : last] += weight
        column_C[last] += (high - last) * weight
    return found


def band_path(floor_C: NDArray[np.float64], ceiling_C: NDArray[np.float64], top: float) -> str:
    """An SVG path of the rectangles between two heights, neighbours of equal heights in one."""
    parts = []
    borders = np.flatnonzero((np.diff(floor_C) != 0) | (np.diff(ceiling_C) != 0)) + 1
    scale = (RIGHT - LEFT) / len(floor_C)
    edges = [0, *borders.tolist(), len(floor_C)]
    for left, right in itertools.pairwise(edges):
        low, high = int(floor_C[left]), int(ceiling_C[left])
        if high > low:
            wide = f"{(right - left) * scale:g}"
            parts.append(f"M{LEFT + left * scale:g} {top + TALL - low:g}h{wide}v{low - high}h-{wide}z")
    return "".join(parts)
