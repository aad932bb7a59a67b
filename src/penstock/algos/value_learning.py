"""Learning values from data of another policy: expectiles, one-step targets, conservatism, weighted imitation.

``A`` action tokens, packed; the actions of a row are together and in order. ``Q`` heads. A loss is a sum divided by the
whole batch's count, given as ``denominator``, so that micro-batches add up. Cells of weight 0 are never read.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from penstock.algos.losses import counted, weighted_mean


def next_values(value_A: Tensor, row_A: Tensor) -> Tensor:
    """The value of the state that follows each action: that of the row's next action, and 0 after its last.

    A sample is an ended episode: nothing can be gained any more after its last action. Observations between two actions
    belong to the transition.
    """
    follows_A = torch.cat([row_A[1:] == row_A[:-1], row_A.new_zeros(1, dtype=torch.bool)]) if len(row_A) else row_A.bool()
    return torch.where(follows_A, value_A.roll(-1), torch.zeros_like(value_A))


def temporal_difference_loss(q_AQ: Tensor, backup_A: Tensor, weight_A: Tensor, *, denominator: float) -> Tensor:
    """``Σ_heads (Q(s, a) - backup)²`` with ``backup = r + discount · V(s')`` (Snell et al. 2022, arXiv 2206.11871, eq. 3).

    Args:
        q_AQ: values of the actions taken (has gradient).
        backup_A: what they should be; its gradient is not used.
        weight_A: how much each action counts.
        denominator: action tokens of the whole batch.
    """
    gap_AQ = counted(q_AQ - backup_A.detach()[:, None], weight_A[:, None])
    return weighted_mean(gap_AQ.square().sum(-1), weight_A, denominator=denominator)


def expectile_loss(value_A: Tensor, target_A: Tensor, weight_A: Tensor, *, expectile: float, denominator: float) -> Tensor:
    """``|τ - 1(u < 0)| · u²`` with ``u = target - value`` (Kostrikov et al. 2022, arXiv 2110.06169, eq. 5).

    0.5 is half the squared error, whose minimum is the mean; towards 1 the value nears the best of the targets seen.

    Args:
        value_A: state values (has gradient).
        target_A: Q of the actions taken in those states; its gradient is not used.
    """
    gap_A = counted(target_A.detach() - value_A, weight_A)
    tilt_A = torch.where(gap_A < 0, 1 - expectile, expectile)
    return weighted_mean(tilt_A * gap_A.square(), weight_A, denominator=denominator)


def conservative_loss(q_AQ: Tensor, q_logsumexp_AQ: Tensor, weight_A: Tensor, *, denominator: float) -> Tensor:
    """``Σ_heads logsumexp_a Q(s, a) - Q(s, a_taken)`` (CQL: Kumar et al. 2020, arXiv 2006.04779; as used for ILQL).

    The cross-entropy of the taken action under ``softmax(Q)``. Its gradient lowers the values of actions that the data does
    not show, by ``softmax(Q)``, and raises that of the one taken.
    """
    return weighted_mean((q_logsumexp_AQ - q_AQ).sum(-1), weight_A, denominator=denominator)


def advantage_weight(advantage: Tensor, *, scale: float, limit: float) -> Tensor:
    """``min(exp(scale · advantage), limit)``, without gradient (AWAC: Nair et al. 2020, arXiv 2006.09359, eq. 13).

    ``scale`` is one over the paper's λ; 0 weighs every action alike.
    """
    return (scale * advantage.detach()).clamp(max=math.log(limit)).exp()
