"""Curves as geometry: thinning, ticks and paths. The template draws them; nothing here knows HTML."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from penstock.ui.metrics import shown, text_of, value_of

POINTS = 600
"""Most points of a drawn curve."""
WIDTH, HEIGHT = 320.0, 150.0
LEFT, RIGHT, TOP, BOTTOM = 46.0, 312.0, 10.0, 126.0
"""Edges of the plot inside WIDTH x HEIGHT, in drawing units."""
SMOOTHED_FROM = 80
"""Fewest points for which a running mean is drawn over the raw curve."""
LARGEST, SMALLEST = 1e100, 1e-100
"""Larger values have diverged and are marked like non-finite ones; smaller ones are drawn as 0."""
DOTS_TO = 40
"""Most points that are marked one by one."""

Point = tuple[float, float]


@dataclass(frozen=True)
class Tick:
    """A mark on an axis: where, in drawing units, and its text."""

    at: float
    label: str


@dataclass(frozen=True)
class Curve:
    """One metric of one stage, ready to draw. ``bad`` are places of values that were not finite."""

    name: str
    label: str
    last: str
    low: str
    high: str
    line: str
    faint: str
    dots: tuple[Point, ...]
    bad: tuple[float, ...]
    bad_count: int
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    data: str
    """``step,value,x,y`` of every drawn point, parted by spaces, for the page's tooltip."""


def thin(points: Sequence[Point], limit: int = POINTS) -> list[Point]:
    """At most ``limit`` points that keep every peak: the lowest and the highest of each bucket, in order."""
    if len(points) <= limit:
        return list(points)
    buckets, kept = max(1, (limit - 2) // 2), [points[0]]
    for index in range(buckets):
        bucket = points[index * len(points) // buckets : (index + 1) * len(points) // buckets]
        extremes = {min(bucket, key=lambda p: p[1]), max(bucket, key=lambda p: p[1])}
        kept += sorted(extremes - {kept[-1]})
    return kept if kept[-1] == points[-1] else [*kept, points[-1]]


def smooth(points: Sequence[Point]) -> list[Point]:
    """Running mean over a fortieth of the points, centred; the window shrinks at the ends."""
    half = max(1, len(points) // 80)
    sums = list(itertools.accumulate((value for _, value in points), initial=0.0))
    means = []
    for index, (step, _) in enumerate(points):
        reach = min(half, index, len(points) - 1 - index)
        low, high = index - reach, index + reach + 1
        means.append((step, (sums[high] - sums[low]) / (high - low)))
    return means


def nice_ticks(low: float, high: float, count: int, whole: bool = False) -> list[float]:
    """Round numbers (steps of 1, 2 or 5 times a power of ten) within [low, high], about ``count`` of them."""
    span = high - low
    if span <= 0:
        return [low]
    raw = span / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    step = max(1.0, round(step)) if whole else step
    first = math.ceil(low / step - 1e-9)
    return [index * step for index in range(first, math.floor(high / step + 1e-9) + 1)]


def tick_label(value: float, ticks: Sequence[float], share: bool = False) -> str:
    """A tick's text with as many decimals as its neighbours need; thousands as k, millions as M, shares in percent."""
    largest = max(abs(tick) for tick in ticks)
    if value == 0 or largest == 0:
        return "0"
    step = min((abs(b - a) for a, b in itertools.pairwise(ticks)), default=largest) or largest
    scale, suffix = (1e6, "M") if largest >= 1e6 else (1e3, "k") if largest >= 1e4 else (1.0, "")
    if share:
        scale, suffix = 0.01, "%"
    elif largest >= 1e9 or largest < 1e-3:
        exponent = math.floor(math.log10(largest))
        scale, suffix = 10.0**exponent, f"e{exponent}"
    decimals = max(0, -math.floor(math.log10(step / scale) + 1e-9))
    return f"{value / scale:,.{min(decimals, 6)}f}{suffix}".replace("-", "−")


def limits(values: Sequence[float]) -> tuple[float, float]:
    """A vertical range with a little air; a constant curve lies in the middle."""
    low, high = min(values), max(values)
    air = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    return 0.0 if 0 <= low < high * 0.25 else low - air, high + air


def path(points: Iterable[Point]) -> str:
    """An SVG path through points in drawing units."""
    return "".join(f"{'L' if index else 'M'}{x:.1f} {y:.1f}" for index, (x, y) in enumerate(points))


def curve(name: str, points: Sequence[Point]) -> Curve:
    """The drawing of a metric from its (step, value) points in order of steps; values may be non-finite, points not none."""
    finite = [(step, value if abs(value) > SMALLEST else 0.0) for step, value in points if abs(value) < LARGEST]
    first, final = points[0][0], points[-1][0]
    low, high = limits([value for _, value in finite] or [0.0])

    share = shown(name).share

    def written(value: float) -> str:
        return value_of(name, value) if share else text_of(value)

    def x_of(step: float) -> float:
        return LEFT + (RIGHT - LEFT) * ((step - first) / (final - first) if final > first else 0.5)

    def y_of(value: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * (value - low) / (high - low)

    drawn = thin(finite)
    smoothed = thin(smooth(finite)) if len(finite) >= SMOOTHED_FROM else []
    raw_line = path((x_of(step), y_of(value)) for step, value in drawn)
    bad = [step for step, value in points if not abs(value) < LARGEST]
    x_marks = nice_ticks(first, final, 4, whole=True)
    y_marks = nice_ticks(low, high, 5)
    return Curve(
        name=name,
        label=shown(name).label,
        last=value_of(name, points[-1][1]),
        low=written(min(value for _, value in finite)) if finite else "",
        high=written(max(value for _, value in finite)) if finite else "",
        line=path((x_of(step), y_of(value)) for step, value in smoothed) or raw_line,
        faint=raw_line if smoothed else "",
        dots=tuple((round(x_of(s), 1), round(y_of(v), 1)) for s, v in drawn) if len(drawn) <= DOTS_TO else (),
        bad=tuple(round(x_of(step), 1) for step, _ in thin([(step, 0.0) for step in bad], 100)),
        bad_count=len(bad),
        x_ticks=tuple(Tick(round(x_of(mark), 1), tick_label(mark, x_marks)) for mark in x_marks),
        y_ticks=tuple(Tick(round(y_of(mark), 1), tick_label(mark, y_marks, share)) for mark in y_marks),
        data=" ".join(f"{s:g},{written(v).replace(',', '_')},{x_of(s):.1f},{y_of(v):.1f}" for s, v in drawn),
    )
