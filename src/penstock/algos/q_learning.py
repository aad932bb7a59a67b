"""Learning values of actions from transitions of older policies: targets and losses of the DQN family and of SAC.

``A`` transitions, ``W`` options, ``Q`` critics. A loss is a sum divided by the whole batch's count, as in ``losses.py``.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from penstock.algos.advantages import Array
from penstock.algos.losses import counted, weighted_mean
from penstock.core.errors import TrainingError
from penstock.core.types import IntArray


def n_step_sums(reward_TN: ArrayLike, last_TN: ArrayLike, discount: float, steps: int) -> tuple[Array, IntArray]:
    """``Σ_{k<m} discount^k · r_{t+k}`` of the next ``m ≤ steps`` rewards, and ``m`` (Sutton 1988; Hessel et al. 2018, arXiv
    1710.02298, section 3).

    ``m`` is smaller where a step of ``last_TN`` comes before: an episode's last, or the fragment's, which ends all of them.
    """
    reward_TN, last_TN = np.asarray(reward_TN, np.float64), np.asarray(last_TN, bool)
    if reward_TN.shape != last_TN.shape or steps < 1 or not last_TN[-1].all():
        raise TrainingError(
            f"n-step sums need rewards and ends of one shape and n >= 1, got {reward_TN.shape}, {last_TN.shape}"
        )
    sum_TN, span_TN, goes_on_TN = reward_TN.copy(), np.ones(reward_TN.shape, np.int32), ~last_TN
    for ahead in range(1, min(steps, len(reward_TN))):
        on_TN = goes_on_TN[:-ahead]  # nothing ended before that step
        sum_TN[:-ahead] += on_TN * discount**ahead * reward_TN[ahead:]
        span_TN[:-ahead] += on_TN
        goes_on_TN[:-ahead] &= ~last_TN[ahead:]
    return sum_TN, span_TN


def q_target(return_A: Tensor, discount_A: Tensor, next_q_AW: Tensor, next_target_AW: Tensor, *, double: bool) -> Tensor:
    """``R + discount · Q_target(s', argmax_a Q(s', a))`` (double Q-learning: van Hasselt et al. 2016, arXiv 1509.06461, eq. 4);
    without ``double`` the largest ``Q_target`` (Mnih et al. 2015).

    ``discount_A`` is 0 where the episode terminated before ``s'``."""
    chosen_A1 = (next_q_AW if double else next_target_AW).argmax(-1, keepdim=True)
    return return_A + discount_A * next_target_AW.gather(-1, chosen_A1)[:, 0]


def q_loss(q_A: Tensor, target_A: Tensor, weight_A: Tensor, *, denominator: float) -> Tensor:
    """``Σ w · huber(Q(s, a) - target)``: half the square up to 1, linear beyond (Mnih et al. 2015)."""
    return weighted_mean(huber(counted(q_A - target_A.detach(), weight_A)), weight_A, denominator=denominator)


def huber(gap: Tensor) -> Tensor:
    """Half the square up to 1, linear beyond."""
    size = gap.abs()
    small = size.clamp(max=1.0)
    return small * (size - 0.5 * small)


def quantile_target(return_A: Tensor, discount_A: Tensor, next_q_AW: Tensor, next_target_AWK: Tensor) -> Tensor:
    """``R + discount · Z_target(s', argmax_a Q(s', a))``, ``[A, K]`` equally likely returns (Dabney et al. 2018, arXiv
    1710.10044, algorithm 1). ``next_q_AW`` chooses: the trained network's for a double target, or the target network's own."""
    chosen_AWK = next_q_AW.argmax(-1)[:, None, None].expand(-1, 1, next_target_AWK.shape[-1])
    return return_A[:, None] + discount_A[:, None] * next_target_AWK.gather(1, chosen_AWK)[:, 0]


def quantile_loss(quantile_AK: Tensor, target_AK: Tensor, weight_A: Tensor, *, denominator: float) -> Tensor:
    """``Σ w · Σ_i mean_j |τ_i - [u_ij < 0]| · huber(u_ij)`` with ``u_ij = target_j - quantile_i`` and ``τ_i = (i + ½) / K``
    (Dabney et al. 2018, arXiv 1710.10044, eq. 10)."""
    count = quantile_AK.shape[-1]
    share_K1 = ((torch.arange(count, device=quantile_AK.device) + 0.5) / count)[:, None]
    gap_AKJ = target_AK.detach()[:, None] - counted(quantile_AK, weight_A[:, None])[..., None]
    share_AKJ = (share_K1 - (gap_AKJ.detach() < 0).to(gap_AKJ.dtype)).abs()
    term_A = (share_AKJ * huber(gap_AKJ)).mean(-1).sum(-1)
    return weighted_mean(term_A, weight_A, denominator=denominator)


def soft_target(return_A: Tensor, discount_A: Tensor, next_q_AQ: Tensor, next_logp_A: Tensor, temperature: Tensor) -> Tensor:
    """``R + discount · (min_i Q_i(s', a') - α · log π(a'|s'))`` with ``a'`` of the policy (Haarnoja et al. 2018, arXiv
    1812.05905, eq. 3 and 5; the smaller of two critics as in TD3, 1802.09477)."""
    return return_A + discount_A * (next_q_AQ.amin(-1) - temperature * next_logp_A)


def soft_losses(
    q_AQ: Tensor, target_A: Tensor, policy_q_AQ: Tensor, policy_logp_A: Tensor, log_temperature: Tensor, entropy: float
) -> tuple[Tensor, Tensor, Tensor]:
    """``½ Σ_i (Q_i - target)²``, ``α · log π - min_i Q_i`` and ``-log α · (log π + entropy)`` of each transition (Haarnoja et
    al. 2018, arXiv 1812.05905, eq. 5, 7 and 18, the last for log α).

    ``policy_q_AQ`` is of new actions of the policy, with a gradient by way of the action alone; ``entropy``: its goal, nats."""
    critic_A = 0.5 * (q_AQ - target_A.detach()[:, None]).square().sum(-1)
    actor_A = log_temperature.detach().exp() * policy_logp_A - policy_q_AQ.amin(-1)
    return critic_A, actor_A, -log_temperature * (policy_logp_A.detach() + entropy)
