"""Advantages and baselines: from rewards (and values) to how much better each action was than expected.

Every function is pure, takes and gives numpy arrays, and computes in float64. ``G`` samples of one prompt, ``T`` action
steps of one sample. Only scored samples may be passed in: a failed sample has no reward and must not shift the baseline of
its siblings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from penstock.core.errors import TrainingError

Array = NDArray[np.float64]

STD_OFFSET = 1e-6
"""Added to a group's standard deviation, so that a nearly flat group is not blown up without bound."""

VARIANCE_OFFSET = 1e-8
"""Added to a batch's variance when whitening; equal advantages become zeros instead of NaN."""


def group_centred(reward_G: ArrayLike) -> Array:
    """Reward minus the group's mean: ``A_i = r_i - mean(r)`` (Dr. GRPO: Liu et al. 2025, arXiv 2503.20783).

    Raises:
        TrainingError: fewer than two samples, or a reward that is not finite.
    """
    return _deviation(reward_G, "the group mean")


def group_normalised(reward_G: ArrayLike) -> Array:
    """Group z-score: ``A_i = (r_i - mean(r)) / (std(r) + 1e-6)`` with the sample standard deviation.

    GRPO with outcome supervision (Shao et al. 2024, arXiv 2402.03300, 4.1.2).

    Raises:
        TrainingError: fewer than two samples, or a reward that is not finite.
    """
    deviation_G = _deviation(reward_G, "the group's standard deviation")
    return deviation_G / (np.asarray(reward_G, np.float64).std(ddof=1) + STD_OFFSET)


def leave_one_out(reward_G: ArrayLike) -> Array:
    """Reward minus the mean of the others: ``A_i = r_i - mean_{j != i}(r_j)`` (Kool et al. 2019).

    The same as ``G / (G - 1) * (r_i - mean(r))``, which is how it is computed.

    Raises:
        TrainingError: fewer than two samples (there are no others), or a reward that is not finite.
    """
    deviation_G = _deviation(reward_G, "a leave-one-out baseline")
    return deviation_G * (len(deviation_G) / (len(deviation_G) - 1))


def _deviation(reward_G: ArrayLike, what: str) -> Array:
    reward_G = np.asarray(reward_G, np.float64)
    if reward_G.ndim != 1 or len(reward_G) < 2:
        raise TrainingError(f"{what} needs two or more scored samples of a prompt, got rewards of shape {reward_G.shape}")
    if not np.isfinite(reward_G).all():
        raise TrainingError(f"{what} is undefined for rewards that are not finite: {reward_G.tolist()}")
    # The mean of equal numbers can differ from them by a rounding error; a flat group must be exactly flat.
    return np.zeros_like(reward_G) if np.ptp(reward_G) == 0 else reward_G - reward_G.mean()


def generalised_advantages(
    reward_T: ArrayLike, value_T: ArrayLike, discount: float, lam: float, *, bootstrap: float = 0.0
) -> tuple[Array, Array]:
    """Generalised advantage estimation over the action steps of one sample (Schulman et al. 2016, arXiv 1506.02438).

    ``delta_t = r_t + discount * V_{t+1} - V_t``, ``A_t = delta_t + discount * lam * A_{t+1}``; the return is ``A_t + V_t``.

    Args:
        reward_T: reward of each action step.
        value_T: value of the state in which each action was taken.
        discount: weight of the next step's value, in [0, 1].
        lam: 0 trusts the value (one-step error), 1 trusts the rewards (Monte Carlo return minus value).
        bootstrap: value of the state after the last action: 0 for an episode that ended, the critic's value for one that
            was cut off while it still ran.

    Returns:
        Advantages and returns, each ``[T]``.

    Raises:
        TrainingError: no step, unequal lengths, or a coefficient outside [0, 1].
    """
    reward_T, value_T = np.asarray(reward_T, np.float64), np.asarray(value_T, np.float64)
    if reward_T.ndim != 1 or reward_T.shape != value_T.shape or not len(reward_T):
        raise TrainingError(f"one value per rewarded step is needed; got rewards {reward_T.shape}, values {value_T.shape}")
    if not (0 <= discount <= 1 and 0 <= lam <= 1):
        raise TrainingError(f"discount={discount} and lam={lam} must lie in [0, 1]")
    error_T = reward_T + discount * np.append(value_T[1:], bootstrap) - value_T
    advantage_T = np.empty_like(error_T)
    carried = 0.0
    for step in range(len(error_T) - 1, -1, -1):
        carried = error_T[step] + discount * lam * carried
        advantage_T[step] = carried
    return advantage_T, advantage_T + value_T


def whiten(advantages: Sequence[NDArray[Any]]) -> list[Array]:
    """Shift and scale to mean 0 and variance 1 over all action tokens of a batch, each token counting once.

    Args:
        advantages: one array per sample, over its action tokens.

    Raises:
        TrainingError: fewer than two tokens in total; the variance of a single one is undefined.
    """
    tokens = np.concatenate([np.asarray(item, np.float64) for item in advantages]) if advantages else np.empty(0)
    if len(tokens) < 2:
        raise TrainingError(f"whitening needs two or more action tokens, got {len(tokens)}")
    mean, scale = tokens.mean(), 1 / np.sqrt(tokens.var(ddof=1) + VARIANCE_OFFSET)
    return [(np.asarray(item, np.float64) - mean) * scale for item in advantages]
