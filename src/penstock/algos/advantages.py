"""Advantages and baselines: from rewards (and values) to how much better each action was than expected.

Every function is pure, takes and gives numpy arrays, and computes in float64. ``G`` samples of one prompt, ``T`` action
steps of one sample. Only scored samples may be passed in: a failed sample has no reward and must not shift the baseline of
its siblings.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from penstock.algos.best_of import pass_at_k
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


def optimal_baseline(reward_G: ArrayLike, length_G: ArrayLike) -> Array:
    """Reward minus the length-weighted mean: ``A_i = r_i - sum(l r) / sum(l)`` (OPO: Hao et al. 2025, arXiv 2505.23585).

    The baseline of least variance, if the squared gradient of a sample grows with its length ``l`` (action tokens).

    Raises:
        TrainingError: fewer than two samples, a reward that is not finite, or a length that is not positive.
    """
    _deviation(reward_G, "the optimal baseline")
    reward_G, length_G = np.asarray(reward_G, np.float64), np.asarray(length_G, np.float64)
    if length_G.shape != reward_G.shape or not (length_G > 0).all():
        raise TrainingError(f"the optimal baseline needs a positive length per reward, got {length_G.tolist()}")
    return np.zeros_like(reward_G) if np.ptp(reward_G) == 0 else reward_G - (length_G * reward_G).sum() / length_G.sum()


def pass_at_k_advantages(right_G: ArrayLike, k: int) -> Array:
    """Advantages that raise the chance that one of ``k`` samples is right (Chen et al. 2025, arXiv 2508.10751).

    The mean reward of all k-subsets is ``m = 1 - C(w, k) / C(G, k)`` for ``w`` wrong ones, its deviation ``s = sqrt(m (1 -
    m))``. A right sample makes every subset right: ``(1 - m) / s``. A wrong one leaves it to the others: ``(1 - m -
    C(w - 1, k - 1) / C(G - 1, k - 1)) / s``. Zero where all subsets are right or all are wrong. ``k=1`` is the z-score of
    the group with the deviation of a population.

    Args:
        right_G: whether each sample is right.
        k: subset size, from 1 to G.

    Raises:
        TrainingError: ``k`` outside 1 … G.
    """
    right_G = np.asarray(right_G, bool)
    count, right = len(right_G), int(right_G.sum())
    wrong, mean = count - right, pass_at_k(count, right, k)
    if not 0 < mean < 1:
        return np.zeros(count)
    others_wrong = math.comb(wrong - 1, k - 1) / math.comb(count - 1, k - 1)
    return (np.where(right_G, 1 - mean, 1 - mean - others_wrong)) / math.sqrt(mean * (1 - mean))


def with_signal(advantages: Sequence[Array]) -> list[Array]:
    """Scale up by ``samples / samples of groups that are not flat`` (GPG: Chu et al. 2025, arXiv 2504.02546).

    Flat groups add nothing to the gradient and yet count in its mean, which they shrink; this undoes it. A batch of flat
    groups stays as it is.

    Args:
        advantages: one array per group.
    """
    total = sum(map(len, advantages))
    telling = sum(len(advantage_G) for advantage_G in advantages if np.any(advantage_G))
    return [advantage_G * (total / telling) if telling else advantage_G for advantage_G in advantages]


def decoupled(reward_NG: ArrayLike, weight_N: ArrayLike) -> Array:
    """Several rewards of one group, each a z-score of its own, then their weighted sum (GDPO: arXiv 2601.05242).

    A sum that is normalised afterwards lets the reward with the widest spread drown the others. The sum over a batch is
    to be whitened next (:func:`whiten`, one number per sample).

    Args:
        reward_NG: rewards by name and sample; NaN where a reward does not apply, which adds 0 there and shifts no mean. A
            reward that applies to fewer than two samples of the group adds nothing.
        weight_N: weight of each reward.

    Returns:
        One number per sample, ``[G]``.
    """
    reward_NG, weight_N = np.atleast_2d(np.asarray(reward_NG, np.float64)), np.asarray(weight_N, np.float64)
    total_G = np.zeros(reward_NG.shape[1])
    for reward_G, weight in zip(reward_NG, weight_N, strict=True):
        applies = ~np.isnan(reward_G)
        if applies.sum() >= 2:
            total_G[applies] += weight * group_normalised(reward_G[applies])
    return total_G


def process_normalised(rewards: Sequence[NDArray[Any]]) -> list[Array]:
    """Step rewards normalised over the group and summed from each token on (GRPO's process supervision, 2402.03300, 4.1.3).

    Every reward that is not 0 is the reward of a step, which ends at its token. The mean and the sample deviation are over all
    steps of the group; a token's advantage is the sum of the normalised rewards of the steps that end at it or later.

    Args:
        rewards: one array per sample of the group, over its action tokens.

    A group with fewer than two steps has no deviation and tells nothing: all zeros.

    Raises:
        TrainingError: a reward that is not finite.
    """
    given = [np.asarray(reward_A, np.float64) for reward_A in rewards]
    scaled = [np.zeros_like(reward_A) for reward_A in given]
    steps = np.concatenate([reward_A[reward_A != 0] for reward_A in given])
    if len(steps) >= 2:
        normalised = iter(group_normalised(steps))
        for reward_A, scaled_A in zip(given, scaled, strict=True):
            scaled_A[reward_A != 0] = [next(normalised) for _ in range(np.count_nonzero(reward_A))]
    return [returns_to_go(scaled_A, 1.0) for scaled_A in scaled]


def _deviation(reward_G: ArrayLike, what: str) -> Array:
    reward_G = np.asarray(reward_G, np.float64)
    if reward_G.ndim != 1 or len(reward_G) < 2:
        raise TrainingError(f"{what} needs two or more scored samples of a prompt, got rewards of shape {reward_G.shape}")
    if not np.isfinite(reward_G).all():
        raise TrainingError(f"{what} is undefined for rewards that are not finite: {reward_G.tolist()}")
    # The mean of equal numbers can differ from them by a rounding error; a flat group must be exactly flat.
    return np.zeros_like(reward_G) if np.ptp(reward_G) == 0 else reward_G - reward_G.mean()


def returns_to_go(reward_T: ArrayLike, discount: float) -> Array:
    """``G_t = r_t + discount * G_{t+1}`` over the action steps of one sample, ``[T]`` (Sutton & Barto 2018, eq. 3.9).

    Raises:
        TrainingError: a discount outside [0, 1].
    """
    if not 0 <= discount <= 1:
        raise TrainingError(f"discount={discount} must lie in [0, 1]")
    reward_T = np.asarray(reward_T, np.float64)
    return_T, carried = np.empty_like(reward_T), 0.0
    for step in range(len(reward_T) - 1, -1, -1):
        carried = reward_T[step] + discount * carried
        return_T[step] = carried
    return return_T


def vtrace(
    reward_T: ArrayLike,
    value_T: ArrayLike,
    gap_T: ArrayLike,
    discount: float,
    *,
    lam: float = 1.0,
    bounds: tuple[float, float] = (1.0, 1.0),
    bootstrap: float = 0.0,
) -> tuple[Array, Array]:
    """V-trace targets and policy-gradient advantages of one off-policy sample (Espeholt et al. 2018, arXiv 1802.01561).

    With ``rho_t = min(bounds[0], ratio_t)`` and ``c_t = lam * min(bounds[1], ratio_t)``:
    ``v_t = V_t + rho_t (r_t + discount V_{t+1} - V_t) + discount c_t (v_{t+1} - V_{t+1})`` (eq. 1, remark 1) and
    ``A_t = rho_t (r_t + discount v_{t+1} - V_t)``. On-policy with ``lam=1``, ``v_t`` is the n-step return.

    Args:
        reward_T: reward of each action step.
        value_T: value of the state in which each action was taken.
        gap_T: log-prob of each action under the policy to learn for, less that under the one that drew it.
        discount: weight of the next step's value, in [0, 1].
        lam: how far corrections are carried back, in [0, 1].
        bounds: largest weights; the first decides which policy's value is learned, the second only the speed.
        bootstrap: value of the state after the last action; 0 for an episode that ended.

    Returns:
        Advantages and value targets, each ``[T]``.

    Raises:
        TrainingError: no step, unequal lengths, coefficients out of range, or the bounds in the wrong order.
    """
    reward_T, value_T, gap_T = (np.asarray(item, np.float64) for item in (reward_T, value_T, gap_T))
    if reward_T.ndim != 1 or not reward_T.shape == value_T.shape == gap_T.shape or not len(reward_T):
        raise TrainingError(f"one value and log-ratio per reward: got {reward_T.shape}, {value_T.shape}, {gap_T.shape}")
    if not (0 <= discount <= 1 and 0 <= lam <= 1 and bounds[0] >= bounds[1] > 0):
        raise TrainingError(f"discount={discount} and lam={lam} must lie in [0, 1], and bounds={bounds} must not rise")
    ratio_T = np.exp(gap_T.clip(-20, 20))
    rho_T, c_T = np.minimum(bounds[0], ratio_T), lam * np.minimum(bounds[1], ratio_T)
    next_value_T = np.append(value_T[1:], bootstrap)
    error_T = rho_T * (reward_T + discount * next_value_T - value_T)
    excess_T, carried = np.empty_like(error_T), 0.0
    for step in range(len(error_T) - 1, -1, -1):
        carried = error_T[step] + discount * c_T[step] * carried
        excess_T[step] = carried
    target_T = value_T + excess_T
    advantage_T = rho_T * (reward_T + discount * np.append(target_T[1:], bootstrap) - value_T)
    return advantage_T, target_T


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
    advantage_T = returns_to_go(error_T, discount * lam)
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
