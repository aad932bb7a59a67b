"""Curves as geometry: thinning, ticks and paths. The template draws them; nothing here knows HTML."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.ui.metrics import shown, text_of, value_of
from penstock.ui.text import spread

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
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


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


def thin_places(value_N: Floats, points: int) -> Ints:
    """Places of at most ``points`` values that keep every peak: first, last, and each bucket's lowest and highest, in order."""
    count = len(value_N)
    if count <= points:
        return np.arange(count)
    buckets = max(1, (points - 2) // 2)
    size = math.ceil(count / buckets)
    padded = np.concatenate([value_N, np.full(-count % size, value_N[-1])]).reshape(-1, size)
    starts = np.arange(len(padded)) * size
    kept = np.concatenate([[0], starts + padded.argmin(1), starts + padded.argmax(1), [count - 1]])
    return np.unique(np.minimum(kept, count - 1))


def smoothed(value_N: Floats) -> Floats:
    """Running mean over a fortieth of the values, centred; the window shrinks at the ends."""
    count = len(value_N)
    place_N = np.arange(count)
    reach_N = np.minimum(max(1, count // 80), np.minimum(place_N, count - 1 - place_N))
    sums = np.concatenate([[0.0], np.cumsum(value_N)])
    return (sums[place_N + reach_N + 1] - sums[place_N - reach_N]) / (2 * reach_N + 1)


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


def curve(name: str, step_N: Ints, value_N: Floats) -> Curve:
    """The drawing of a metric, steps in order; values may be non-finite, but there is one at least."""
    good_N = np.abs(value_N) < LARGEST
    finite_N = np.where(np.abs(value_N) > SMALLEST, value_N, 0.0)[good_N]
    first, final = float(step_N[0]), float(step_N[-1])
    low, high = limits(finite_N.tolist() or [0.0])

    share = shown(name).share

    def written(value: float) -> str:
        return value_of(name, value) if share else text_of(value)

    def x_of(step: float) -> float:
        return LEFT + (RIGHT - LEFT) * ((step - first) / (final - first) if final > first else 0.5)

    def y_of(value: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * (value - low) / (high - low)

    def thinned(value_N: Floats) -> list[Point]:
        places = thin_places(value_N, POINTS)
        return list(zip(step_N[good_N][places].tolist(), value_N[places].tolist(), strict=True))

    def path(points: Sequence[Point]) -> str:
        return "".join(f"{'L' if i else 'M'}{x_of(step):.1f} {y_of(value):.1f}" for i, (step, value) in enumerate(points))

    drawn = thinned(finite_N)
    smooth = thinned(smoothed(finite_N)) if len(finite_N) >= SMOOTHED_FROM else []
    bad = step_N[~good_N].tolist()
    x_marks = nice_ticks(first, final, 4, whole=True)
    y_marks = nice_ticks(low, high, 5)
    return Curve(
        name=name,
        label=shown(name).label,
        last=value_of(name, float(value_N[-1])),
        low=written(finite_N.min()) if len(finite_N) else "",
        high=written(finite_N.max()) if len(finite_N) else "",
        line=path(smooth or drawn),
        faint=path(drawn) if smooth else "",
        dots=tuple((round(x_of(s), 1), round(y_of(v), 1)) for s, v in drawn) if len(drawn) <= DOTS_TO else (),
        bad=tuple(round(x_of(step), 1) for step in spread(bad, 100)),
        bad_count=len(bad),
        x_ticks=tuple(Tick(round(x_of(mark), 1), tick_label(mark, x_marks)) for mark in x_marks),
        y_ticks=tuple(Tick(round(y_of(mark), 1), tick_label(mark, y_marks, share)) for mark in y_marks),
        data=" ".join(f"{s:g},{written(v).replace(',', '_')},{x_of(s):.1f},{y_of(v):.1f}" for s, v in drawn),
    )
