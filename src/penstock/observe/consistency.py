"""Runs that differ only in their seeds, taken together, and whether one such family is better than another. Pure functions.

Few seeds say little, and a mean with a deviation hides it. What is used here is what stays honest with few: the interquartile
mean with a bootstrap interval (Agarwal et al. 2021, arXiv:2108.13264), and an exact permutation test, which claims nothing
about how results are spread.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
LEVEL = 0.05
"""Two-sided: families differ if chance alone would part them as far in at most this share of the cases."""
RESAMPLES = 10_000
MOST_SPLITS = 20_000
"""Ways to deal results out to two families up to which all are counted; beyond that, random ones, as many."""

Verdict = Literal["better", "worse", "undecided", "too few seeds"]


@dataclass(frozen=True)
class Summary:
    """One family: results in number, their interquartile mean with its 95% interval (None of one result, from which nothing
    can be resampled), lowest and highest."""

    count: int
    middle: float
    interval: tuple[float, float] | None
    lowest: float
    highest: float


@dataclass(frozen=True)
class Comparison:
    """A first family against a second one.

    ``difference``: of the interquartile means, first less second, with its 95% interval (None where a family has one result);
    ``chance`` that a run of the first is above a run of the second (a tie counts half); ``p_value`` of the permutation test,
    corrected for how many pairs of families were compared.
    """

    difference: float
    interval: tuple[float, float] | None
    chance: float
    p_value: float
    verdict: Verdict


def interquartile_mean(value_RN: Floats) -> Floats:
    """Mean of the middle half of the values along the last axis; values at its borders count by the part that is inside."""
    count = value_RN.shape[-1]
    left_N = np.arange(count)
    weight_N = np.clip(np.minimum(left_N + 1, 0.75 * count) - np.maximum(left_N, 0.25 * count), 0.0, None)
    found: Floats = np.sort(value_RN, axis=-1) @ (weight_N / weight_N.sum())
    return found


def resampled(value_N: Floats, seed: int) -> Floats:
    """Interquartile means of bootstrap resamples ``[RESAMPLES]``."""
    generator = np.random.default_rng(seed)
    return interquartile_mean(value_N[generator.integers(0, len(value_N), (RESAMPLES, len(value_N)))])


def interval_of(statistic_R: Floats) -> tuple[float, float]:
    """The middle 95% of a bootstrapped statistic."""
    low, high = np.quantile(statistic_R, [0.025, 0.975])
    return float(low), float(high)


def summary(values: Sequence[float], seed: int = 0) -> Summary:
    """What the results of one family are. Raises ValueError where there is none, or one that is not finite."""
    value_N = _checked(values)
    middle, lowest, highest = float(interquartile_mean(value_N)), float(value_N.min()), float(value_N.max())
    interval = interval_of(resampled(value_N, seed)) if len(value_N) > 1 else None
    return Summary(len(value_N), middle, interval, lowest, highest)


def compare(first: Sequence[float], second: Sequence[float], pairs: int = 1, seed: int = 0) -> Comparison:
    """Whether the results of a first family are above those of a second one.

    Args:
        pairs: comparisons made together, for which the p-value is corrected (Bonferroni).
        seed: of the resamples.

    Raises:
        ValueError: a family without results, or with one that is not finite.
    """
    value_N, value_M = _checked(first), _checked(second)
    difference = float(interquartile_mean(value_N) - interquartile_mean(value_M))
    several = min(len(value_N), len(value_M)) > 1
    interval = interval_of(resampled(value_N, seed) - resampled(value_M, seed + 1)) if several else None
    above_NM = np.sign(value_N[:, None] - value_M)
    p_value = min(1.0, pairs * permutation_test(value_N, value_M, seed))
    mean = float(value_N.mean() - value_M.mean())  # what the test compares
    verdict: Verdict = "undecided"
    if p_value <= LEVEL:
        verdict = "better" if mean > 0 else "worse"
    elif pairs * lowest_p_value(len(value_N), len(value_M)) > LEVEL:
        verdict = "too few seeds"
    return Comparison(difference, interval, float((above_NM.mean() + 1) / 2), p_value, verdict)


def permutation_test(value_N: Floats, value_M: Floats, seed: int = 0) -> float:
    """Share of the ways to deal all results out to two families of these sizes that part their means at least as far.

    Exact up to ``MOST_SPLITS`` ways; beyond, of as many random ones, the one that happened included (Phipson & Smyth 2010).
    """
    pooled = np.concatenate([value_N, value_M])
    count, total = len(value_N), float(pooled.sum())

    def apart(sum_R: Floats) -> Floats:
        return np.abs(sum_R / count - (total - sum_R) / len(value_M))

    seen = float(apart(np.array([value_N.sum()]))[0])
    least = seen - 1e-12 * max(1.0, float(np.abs(pooled).max()))  # equal but for how a sum is rounded
    if math.comb(len(pooled), count) <= MOST_SPLITS:
        chosen = np.array(list(combinations(range(len(pooled)), count)))
        return float((apart(pooled[chosen].sum(1)) >= least).mean())
    generator = np.random.default_rng(seed)
    order = generator.permuted(np.tile(pooled, (MOST_SPLITS, 1)), axis=1)
    return float((1 + (apart(order[:, :count].sum(1)) >= least).sum()) / (1 + MOST_SPLITS))


def lowest_p_value(first: int, second: int) -> float:
    """The lowest p-value that families of these sizes can have, however far apart they are."""
    return min(1.0, (1 if first != second else 2) / math.comb(first + second, first))


def seeds_needed(pairs: int = 1) -> int:
    """Seeds of each family from which on a difference can be shown at all."""
    return next(count for count in range(2, 64) if pairs * lowest_p_value(count, count) <= LEVEL)


def _checked(values: Sequence[float]) -> Floats:
    found = np.asarray(values, np.float64)
    if not found.size or not np.isfinite(found).all():
        raise ValueError(f"{len(found)} results, not all of them finite; compare families of finite results")
    return found
