"""Advantages over fragments: ``[T, N]`` arrays of T steps in N environments, in which episodes end and others begin.

:mod:`penstock.algos.advantages` has the same estimators for one trajectory, and the tests hold the two together. Two arrays say
where an episode ends. ``last_TN`` marks steps after which the next row goes on with something else: the last step of an
episode, and every step of the last row. ``following_TN`` is the value of the state after each step within its episode: 0 where
the episode terminated, the critic's value of the true last observation where it was truncated or is still running. Nothing that
comes after a marked step reaches it. Pure functions of numpy arrays, computed in float64.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from penstock.algos.advantages import Array
from penstock.core.errors import TrainingError


def generalised_advantages(
    reward_TN: ArrayLike, value_TN: ArrayLike, following_TN: ArrayLike, last_TN: ArrayLike, discount: float, lam: float
) -> tuple[Array, Array]:
    """Generalised advantage estimation (Schulman et al. 2016, arXiv 1506.02438) of every environment at once.

    ``delta_t = r_t + discount * F_t - V_t`` with ``F_t`` of ``following_TN``; ``A_t = delta_t + discount * lam * A_{t+1}``,
    without the second term after a last step. The return is ``A_t + V_t``.

    Returns:
        Advantages and returns, each ``[T, N]``.

    Raises:
        TrainingError: arrays of different shapes, or a coefficient outside [0, 1].
    """
    reward_TN, value_TN, following_TN, goes_on_TN = _grids(reward_TN, value_TN, following_TN, last_TN)
    if not (0 <= discount <= 1 and 0 <= lam <= 1):
        raise TrainingError(f"discount={discount} and lam={lam} must lie in [0, 1]")
    advantage_TN = reward_TN + discount * following_TN - value_TN
    carry_TN = discount * lam * goes_on_TN
    for step in range(len(reward_TN) - 2, -1, -1):
        advantage_TN[step] += carry_TN[step] * advantage_TN[step + 1]
    return advantage_TN, advantage_TN + value_TN


def vtrace(
    reward_TN: ArrayLike,
    value_TN: ArrayLike,
    following_TN: ArrayLike,
    last_TN: ArrayLike,
    gap_TN: ArrayLike,
    discount: float,
    lam: float = 1.0,
    bounds: tuple[float, float, float] = (1.0, 1.0, 1.0),
) -> tuple[Array, Array]:
    """V-trace targets and policy-gradient advantages of IMPALA (Espeholt et al. 2018, arXiv 1802.01561).

    With ``rho_t = min(bounds[0], ratio_t)`` and ``c_t = lam * min(bounds[1], ratio_t)``:
    ``v_t = V_t + rho_t (r_t + discount F_t - V_t) + discount c_t (v_{t+1} - V_{t+1})``, without the last term after a last
    step, and ``A_t = min(bounds[2], ratio_t) (r_t + discount v_{t+1} - V_t)``, with ``F_t`` for ``v_{t+1}`` after a last step.

    Args:
        gap_TN: log-prob of each action under the policy to learn for, less that under the one that took it.

    Returns:
        Advantages and value targets, each ``[T, N]``.

    Raises:
        TrainingError: arrays of different shapes, or a coefficient out of range.
    """
    reward_TN, value_TN, following_TN, goes_on_TN = _grids(reward_TN, value_TN, following_TN, last_TN)
    if not (0 <= discount <= 1 and 0 <= lam <= 1 and bounds[0] >= bounds[1] > 0 and bounds[2] > 0):
        raise TrainingError(f"discount={discount} and lam={lam} must lie in [0, 1], bounds={bounds} be (ρ, c, ρ of the policy)")
    ratio_TN = np.exp(np.asarray(gap_TN, np.float64).clip(-20, 20))
    excess_TN = np.minimum(bounds[0], ratio_TN) * (reward_TN + discount * following_TN - value_TN)
    carry_TN = discount * lam * np.minimum(bounds[1], ratio_TN) * goes_on_TN
    for step in range(len(reward_TN) - 2, -1, -1):
        excess_TN[step] += carry_TN[step] * excess_TN[step + 1]
    target_TN = value_TN + excess_TN
    after_TN = following_TN.copy()
    after_TN[:-1] += goes_on_TN[:-1] * (target_TN[1:] - following_TN[:-1])
    return np.minimum(bounds[2], ratio_TN) * (reward_TN + discount * after_TN - value_TN), target_TN


def _grids(reward: ArrayLike, value: ArrayLike, following: ArrayLike, last: ArrayLike) -> tuple[Array, Array, Array, Array]:
    """The arrays in float64, and 1 where the next row goes on with the same episode."""
    found = [np.asarray(item, np.float64) for item in (reward, value, following)]
    last_TN = np.asarray(last, bool)
    shapes = [item.shape for item in (*found, last_TN)]
    if found[0].ndim != 2 or not found[0].size or len(set(shapes)) > 1:
        raise TrainingError(f"advantages of a fragment need four arrays [T, N] of one shape, got {shapes}")
    return found[0], found[1], found[2], (~last_TN).astype(np.float64)
