"""Advantages and baselines: from rewards (and values) to how much better each action was than expected.

Every function is pure, takes and gives numpy arrays, and computes in float64. ``G`` samples of one prompt, ``T`` action
steps of one sample. Only scored samples may be passed in: a failed sample has no reward and must not shift the baseline of
its siblings.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from penstock.algos.best_of import max_at_k, pass_at_k
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


def batch_normalised(rewards: Sequence[ArrayLike]) -> list[Array]:
    """Reward minus the group's mean, over the deviation of the batch: ``A_i = (r_i - mean(r)) / (std(all r) + 1e-6)``.

    The sample standard deviation of all rewards of the batch (Liu et al. 2025, arXiv 2508.08221), so that a nearly flat group
    counts little instead of as much as any other.

    Args:
        rewards: one array per group.

    Raises:
        TrainingError: a group of fewer than two samples, or a reward that is not finite.
    """
    centred = [_deviation(reward_G, "the group mean") for reward_G in rewards]
    scale = np.concatenate([np.asarray(reward_G, np.float64) for reward_G in rewards]).std(ddof=1) if centred else 0.0
    return [deviation_G / (scale + STD_OFFSET) for deviation_G in centred]


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


def max_at_k_advantages(reward_G: ArrayLike, k: int, baseline: Literal["loo-1", "loo", "none"] = "loo-1") -> Array:
    """Weights of samples whose policy gradient raises ``E[max of k]`` (PKPO: Walder & Karkhanis 2025, arXiv 2505.15201).

    ``s_i``, the sum of the maxima of all k-subsets that hold sample i, over ``C(n, k)``: with rewards in rising order ``(C(i-1,
    k-1) r_i + Σ_{j>i} C(j-2, k-2) r_j) / C(n, k)`` (eq. 19). Rewards of 0 and 1 make it pass@k. Less a baseline of the others'
    rewards alone, which leaves the gradient unbiased: ``loo``, ``k / (n - 1) · max@k`` of them (eq. 29); ``loo-1``, ``k / n ·
    max@(k-1)`` of them (eq. 33), which counts what a sample adds to a subset, has the least variance and is never negative.

    Args:
        reward_G: one reward a sample.
        k: subset size, from 1 to n; 2 at least for ``loo-1``, at most n - 1 for ``loo``.

    Raises:
        TrainingError: ``k`` outside of that, fewer than two samples, or a reward that is not finite.
    """
    _deviation(reward_G, "max@k")
    reward_G, count = np.asarray(reward_G, np.float64), len(np.asarray(reward_G))
    least, most = {"loo-1": (2, count), "loo": (1, count - 1), "none": (1, count)}[baseline]
    if not least <= k <= most:
        raise TrainingError(f'max@{k} of {count} samples with baseline="{baseline}" is undefined; k must be {least} to {most}')
    order = np.argsort(reward_G, kind="stable")
    ordered, whole = reward_G[order], math.comb(count, k)
    own = np.array([math.comb(place, k - 1) / whole for place in range(count)]) * ordered
    higher = np.array([math.comb(place - 1, k - 2) / whole if k > 1 < place + 1 else 0.0 for place in range(count)]) * ordered
    weight_G = np.empty(count)
    weight_G[order] = own + higher.sum() - np.cumsum(higher)
    if baseline == "none":
        return weight_G
    size, factor = (k - 1, k / count) if baseline == "loo-1" else (k, k / (count - 1))
    return weight_G - factor * np.array([max_at_k(np.delete(reward_G, place), size) for place in range(count)])


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

    Raises:
        TrainingError: fewer than two samples.
    """
    reward_NG, weight_N = np.atleast_2d(np.asarray(reward_NG, np.float64)), np.asarray(weight_N, np.float64)
    if reward_NG.shape[1] < 2:
        raise TrainingError(f"decoupled rewards need two or more scored samples of a prompt, got {reward_NG.shape[1]}")
    total_G = np.zeros(reward_NG.shape[1])
    for reward_G, weight in zip(reward_NG, weight_N, strict=True):
        applies = ~np.isnan(reward_G)
        if applies.sum() >= 2:
            total_G[applies] += weight * group_normalised(reward_G[applies])
    return total_G


def process_normalised(rewards: Sequence[NDArray[Any]], ends: Sequence[NDArray[np.bool_]] | None = None) -> list[Array]:
    """Step rewards normalised over the group and summed from each token on (GRPO's process supervision, 2402.03300, 4.1.3).

    The mean and the sample deviation are over all steps of the group, also those rewarded with 0; a token's advantage is the
    sum of the normalised rewards of the steps that end at it or later.

    Args:
        rewards: one array per sample of the group, over its action tokens.
        ends: at which of them a step ends. None: at every reward that is not 0, and at a sample's last token.

    A group with fewer than two steps has no deviation and tells nothing: all zeros.

    Raises:
        TrainingError: a reward that is not finite.
    """
    given = [np.asarray(reward_A, np.float64) for reward_A in rewards]
    if ends is None:
        ends = [(reward_A != 0) | (np.arange(len(reward_A)) == len(reward_A) - 1) for reward_A in given]
    scaled = [np.zeros_like(reward_A) for reward_A in given]
    steps = np.concatenate([reward_A[end_A] for reward_A, end_A in zip(given, ends, strict=True)])
    if len(steps) >= 2:
        parts = np.split(group_normalised(steps), np.cumsum([int(end_A.sum()) for end_A in ends])[:-1])
        for scaled_A, end_A, part in zip(scaled, ends, parts, strict=True):
            scaled_A[end_A] = part
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


def n_step_returns(
    reward_T: ArrayLike, value_T: ArrayLike, discount: float, steps: int, *, bootstrap: float = 0.0
) -> tuple[Array, Array]:
    """``G_t = Σ_{k<n} discount^k r_{t+k} + discount^n V_{t+n}`` (Sutton & Barto 2018, eq. 7.1), and ``G_t - V_t``.

    A sum that reaches the end of the sample takes ``bootstrap`` for the value there. ``steps=1`` is the one-step target; as
    many as there are actions, the Monte Carlo return.

    Args:
        reward_T: reward of each action step.
        value_T: value of the state in which each action was taken.
        discount: weight of the next step, in [0, 1].
        steps: n, 1 or more.
        bootstrap: value of the state after the last action; 0 for an episode that ended.

    Returns:
        Advantages and returns, each ``[T]``.

    Raises:
        TrainingError: no step, unequal lengths, a discount outside [0, 1], or no steps to sum over.
    """
    reward_T, value_T = _steps(reward_T, value_T)
    if not (0 <= discount <= 1 and steps >= 1):
        raise TrainingError(f"discount={discount} must lie in [0, 1], and steps={steps} must be 1 or more")
    return_T = value_T
    for _ in range(min(steps, len(reward_T))):
        return_T = reward_T + discount * np.append(return_T[1:], bootstrap)
    return return_T - value_T, return_T


def _steps(reward_T: ArrayLike, value_T: ArrayLike) -> tuple[Array, Array]:
    reward_T, value_T = np.asarray(reward_T, np.float64), np.asarray(value_T, np.float64)
    if reward_T.ndim != 1 or reward_T.shape != value_T.shape or not len(reward_T):
        raise TrainingError(f"one value per rewarded step is needed; got rewards {reward_T.shape}, values {value_T.shape}")
    return reward_T, value_T


def vtrace(
    reward_T: ArrayLike,
    value_T: ArrayLike,
    gap_T: ArrayLike,
    discount: float,
    *,
    lam: float = 1.0,
    bounds: tuple[float, float] = (1.0, 1.0),
    policy_bound: float | None = None,
    bootstrap: float = 0.0,
) -> tuple[Array, Array]:
    """V-trace targets and policy-gradient advantages of one off-policy sample (Espeholt et al. 2018, arXiv 1802.01561).

    With ``rho_t = min(bounds[0], ratio_t)`` and ``c_t = lam * min(bounds[1], ratio_t)``:
    ``v_t = V_t + rho_t (r_t + discount V_{t+1} - V_t) + discount c_t (v_{t+1} - V_{t+1})`` (eq. 1, remark 1) and
    ``A_t = rho_t (r_t + discount v_{t+1} - V_t)``, there with ``policy_bound`` in the place of ``bounds[0]`` if it is given.
    On-policy with ``lam=1``, ``v_t`` is the n-step return.

    Args:
        reward_T: reward of each action step.
        value_T: value of the state in which each action was taken.
        gap_T: log-prob of each action under the policy to learn for, less that under the one that drew it.
        discount: weight of the next step's value, in [0, 1].
        lam: how far corrections are carried back, in [0, 1].
        bounds: largest weights; the first decides which policy's value is learned, the second only the speed.
        policy_bound: largest weight of the policy gradient; None: the first of ``bounds``.
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
    if policy_bound is not None and not policy_bound > 0:
        raise TrainingError(f"policy_bound={policy_bound} must be above 0")
    ratio_T = np.exp(gap_T.clip(-20, 20))
    rho_T, c_T = np.minimum(bounds[0], ratio_T), lam * np.minimum(bounds[1], ratio_T)
    next_value_T = np.append(value_T[1:], bootstrap)
    error_T = rho_T * (reward_T + discount * next_value_T - value_T)
    excess_T, carried = np.empty_like(error_T), 0.0
    for step in range(len(error_T) - 1, -1, -1):
        carried = error_T[step] + discount * c_T[step] * carried
        excess_T[step] = carried
    target_T = value_T + excess_T
    rho_T = rho_T if policy_bound is None else np.minimum(policy_bound, ratio_T)
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
    reward_T, value_T = _steps(reward_T, value_T)
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
