"""Running moments of numbers that come in batches, and the discounted sums that rewards are scaled by. Pure numpy functions."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from penstock.algos.advantages import Array
from penstock.core.errors import TrainingError


def merged_moments(count: float, mean: Any, squares: Any, values_B: ArrayLike) -> tuple[float, Any, Any]:
    """Count, mean and sum of squared deviations after a batch ``[B, ...]``, exactly (Chan et al. 1979):
    ``n = n_a + n_b``, ``mean = mean_a + gap · n_b / n``, ``squares = squares_a + squares_b + gap² · n_a n_b / n``.

    ``gap`` is the batch's mean less the mean so far. Raises TrainingError for a value that is not finite."""
    more = np.asarray(values_B, np.float64)
    if not len(more):
        return count, mean, squares
    own, total = more.mean(0), count + len(more)
    gap, own_squares = own - mean, np.square(more - own).sum(0)
    if not np.isfinite(own_squares).all():
        raise TrainingError("running moments: a value is not finite, and no mean would ever be finite again")
    return total, mean + gap * len(more) / total, squares + own_squares + gap**2 * count * len(more) / total


def running_returns(reward_TN: ArrayLike, start_TN: ArrayLike, carried_N: ArrayLike, discount: float) -> Array:
    """``R_t = r_t + discount · R_{t-1}`` within an episode, ``[T, N]``; rewards are divided by its deviation (Engstrom et al.
    2020, arXiv 2005.12729).

    ``start_TN``: an episode begins with this step; ``carried_N``: ``R`` before the first one.
    """
    return_TN, goes_on_TN = np.array(reward_TN, np.float64), ~np.asarray(start_TN, bool)
    for step, goes_on_N in enumerate(goes_on_TN):
        return_TN[step] += discount * goes_on_N * (return_TN[step - 1] if step else np.asarray(carried_N))
    return return_TN
