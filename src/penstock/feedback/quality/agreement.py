"""How far annotators agree, beyond what chance would give: Krippendorff's alpha, Cohen's kappa, bootstrap intervals.

Shapes: ``A`` annotators, ``U`` units, ``K`` values that occur.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from penstock.feedback.errors import FeedbackError

Floats = NDArray[np.float64]
Level = Literal["nominal", "ordinal", "interval"]


def krippendorff_alpha(value_AU: ArrayLike, level: Level = "nominal") -> float:
    """``1 - observed / expected disagreement`` over all pairs of values given to one unit; NaN marks missing ones.

    1: all agree; 0: no better than chance; below 0: worse. NaN if no unit has two values, or if all values are the same, so
    that chance alone explains everything.

    SOURCE: Krippendorff 2011, "Computing Krippendorff's Alpha-Reliability".

    Raises:
        FeedbackError: no table, or an unknown level.
    """
    return alpha_of_counts(*value_counts(value_AU), level)


def value_counts(value_AU: ArrayLike) -> tuple[Floats, Floats]:
    """How often each value was given to each unit ``[U, K]``, and the values ``[K]``: all that alpha depends on."""
    table_AU = _table(value_AU)
    value_K = np.unique(table_AU[~np.isnan(table_AU)])
    return np.stack([(table_AU == value).sum(0) for value in value_K], 1, dtype=np.float64) if len(value_K) else _NONE, value_K


def alpha_of_counts(count_UK: Floats, value_K: Floats, level: Level = "nominal") -> float:
    """:func:`krippendorff_alpha` of counted values; a bootstrap draws units from them for a fraction of the cost."""
    count_UK = count_UK[count_UK.sum(1) >= 2]
    paired_U = count_UK.sum(1)
    if (count_UK.sum(0) > 0).sum() < 2:
        return float("nan")
    # Each ordered pair of values within a unit counts 1 / (values of the unit - 1).
    share_UK = count_UK / (paired_U - 1)[:, None]
    coincidence_KK = count_UK.T @ share_UK - np.diag(share_UK.sum(0))
    total_K = coincidence_KK.sum(1)
    expected_KK = (np.outer(total_K, total_K) - np.diag(total_K)) / (total_K.sum() - 1)
    apart_KK = _distance(value_K, total_K, level)
    return float(1 - (coincidence_KK * apart_KK).sum() / (expected_KK * apart_KK).sum())


_NONE: Floats = np.zeros((0, 0))


def _distance(value_K: Floats, total_K: Floats, level: Level) -> Floats:
    """The squared difference between values ``[K, K]``: by name, by how many values lie between, or by size."""
    if level == "nominal":
        return 1.0 - np.eye(len(value_K))
    if level == "interval":
        return (value_K[:, None] - value_K) ** 2
    if level == "ordinal":
        upto_K = np.cumsum(total_K) - total_K / 2
        return (upto_K[:, None] - upto_K) ** 2
    raise FeedbackError(f"level={level!r}; use nominal, ordinal or interval")


def cohen_kappa(first_U: ArrayLike, second_U: ArrayLike, weights: Literal["none", "linear", "quadratic"] = "none") -> float:
    """Agreement of two annotators beyond chance; with ``weights`` a small difference costs less than a large one.

    Units that one of them did not judge (NaN) are left out. NaN if both gave the same one value throughout, or none.

    SOURCE: Cohen 1960, "A coefficient of agreement for nominal scales"; weighted: Cohen 1968.

    Raises:
        FeedbackError: unequal lengths, or unknown weights.
    """
    first, second = np.asarray(first_U, np.float64), np.asarray(second_U, np.float64)
    if first.shape != second.shape or first.ndim != 1:
        raise FeedbackError(f"values of shapes {first.shape} and {second.shape}; give one value a unit of each annotator")
    both = ~(np.isnan(first) | np.isnan(second))
    first, second = first[both], second[both]
    value_K = np.unique(np.concatenate([first, second]))
    if len(value_K) < 2:
        return float("nan")
    apart_KK = np.abs(value_K[:, None] - value_K)
    if weights == "none":
        apart_KK = (apart_KK > 0).astype(np.float64)
    elif weights == "quadratic":
        apart_KK = apart_KK**2
    elif weights != "linear":
        raise FeedbackError(f"weights={weights!r}; use none, linear or quadratic")
    first_UK, second_UK = (first[:, None] == value_K).astype(float), (second[:, None] == value_K).astype(float)
    observed = (first_UK.T @ second_UK * apart_KK).sum() / len(first)
    expected = (np.outer(first_UK.mean(0), second_UK.mean(0)) * apart_KK).sum()
    return float(1 - observed / expected) if expected else float("nan")


def bootstrap_interval(
    value_AU: ArrayLike, statistic: Callable[[Floats], float], *, samples: int = 1000, level: float = 0.95, seed: int = 0
) -> tuple[float, float]:
    """The percentile interval of a statistic of ``[A, U]`` values, with units sampled again with replacement.

    Draws whose statistic is NaN are left out; (NaN, NaN) if all are. A pure function of the values and the seed.

    Raises:
        FeedbackError: no units, or a level outside (0, 1).
    """
    table_AU = _table(value_AU)
    if not 0 < level < 1 or samples < 1:
        raise FeedbackError(f"level={level}, samples={samples}; give a level such as 0.95 and at least one sample")
    generator = np.random.Generator(np.random.Philox(seed))
    units = table_AU.shape[1]
    sampled = np.array([statistic(table_AU[:, generator.integers(0, units, units)]) for _ in range(samples)])
    sampled = sampled[~np.isnan(sampled)]
    if not len(sampled):
        return float("nan"), float("nan")
    low, high = np.quantile(sampled, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def wilson_interval(right: float, of: float, level: float = 0.95) -> tuple[float, float]:
    """An interval of a share that behaves for few trials and shares near 0 and 1; (0, 1) for no trials.

    SOURCE: Wilson 1927, "Probable inference, the law of succession, and statistical inference".
    """
    if not of:
        return 0.0, 1.0
    from statistics import NormalDist

    z = NormalDist().inv_cdf((1 + level) / 2)
    share, stretch = right / of, 1 + z * z / of
    middle = (share + z * z / (2 * of)) / stretch
    half = z / stretch * float(np.sqrt(share * (1 - share) / of + z * z / (4 * of * of)))
    return max(0.0, middle - half), min(1.0, middle + half)


def _table(value_AU: ArrayLike) -> Floats:
    table_AU = np.asarray(value_AU, np.float64)
    if table_AU.ndim != 2 or not table_AU.size:
        raise FeedbackError(f"values of shape {table_AU.shape}; give a table of annotators by units, NaN for missing")
    return table_AU
