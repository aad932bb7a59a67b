"""Losses of scalar scores: preference pairs and single yes/no labels. ``U`` pairs, ``B`` rows.

Each is a sum divided by the whole batch's count, given as ``denominator``, so that micro-batches add up.
"""

from __future__ import annotations

import torch
import torch.nn.functional as functional
from torch import Tensor

from penstock.core.errors import TrainingError


def bradley_terry_loss(
    chosen_U: Tensor,
    rejected_U: Tensor,
    *,
    denominator: float,
    margin: Tensor | float = 0.0,
    probability: Tensor | float = 1.0,
    centring: float = 0.0,
) -> Tensor:
    """``-p log σ(d) - (1 - p) log σ(-d) + centring * (chosen + rejected)²`` with ``d = chosen - rejected - margin``.

    With ``p = 1`` it is ``-log σ(d)`` (Bradley & Terry 1952).

    Args:
        chosen_U: scores of the preferred completions.
        rejected_U: scores of the others.
        denominator: pairs of the whole batch.
        margin: by how much the preferred score should win (Touvron et al. 2023, arXiv 2307.09288), one for all or one
            per pair.
        probability: p, the chance that the preferred score belongs to the better completion, one for all or one per pair.
            The loss is least where ``σ(d) = p``; at one half the order of the two does not matter.
        centring: pulls the scores of a pair to a mean of zero, which the pair loss alone leaves free (Eisenstein et al.
            2023, arXiv 2312.09244).

    Raises:
        TrainingError: unequal shapes, or a denominator that is not positive.
    """
    _check(chosen_U, rejected_U, denominator)
    gap_U = chosen_U - rejected_U - margin
    loss_U = probability * functional.softplus(-gap_U) + (1 - probability) * functional.softplus(gap_U)
    if centring:
        loss_U = loss_U + centring * (chosen_U + rejected_U).square()
    return loss_U.sum() / denominator


def accuracy(margin: Tensor, *, denominator: float) -> Tensor:
    """Share of positive margins, which are those of right answers; one of 0 counts one half, as a coin would.

    Args:
        margin: by how much each preferred completion scores higher, or each score lies on the side of 0 that its label says.
        denominator: margins of the whole batch.
    """
    return (0.5 * (1 + margin.sign())).sum() / denominator


def binary_label_loss(score_B: Tensor, label_B: Tensor, *, denominator: float) -> Tensor:
    """Logistic loss of single labels: ``-log sigmoid(score)`` if the label is 1, ``-log sigmoid(-score)`` if it is 0.

    Args:
        score_B: scores (log-odds of "good").
        label_B: 1 for good, 0 for bad; a fraction is a soft label.
        denominator: rows of the whole batch.

    Raises:
        TrainingError: unequal shapes, or a denominator that is not positive.
    """
    _check(score_B, label_B, denominator)
    loss_B = functional.binary_cross_entropy_with_logits(score_B, label_B.to(score_B.dtype), reduction="none")
    return loss_B.sum() / denominator


def pairs(score_B: Tensor, preferred_B: Tensor, unit_B: Tensor) -> tuple[Tensor, Tensor]:
    """Scores of the preferred and the other row of each pair, ``[U]`` each, whatever order the rows are in.

    Args:
        score_B: score of each row.
        preferred_B: 1 for the preferred row of its pair, 0 for the other.
        unit_B: the pair (0 … U-1) of each row.

    Raises:
        TrainingError: an odd number of rows; a pair was torn apart.
    """
    if score_B.shape[0] % 2:
        raise TrainingError(f"{score_B.shape[0]} rows are no pairs; the rows of a unit must stay in one micro-batch")
    empty_U = score_B.new_zeros(score_B.shape[0] // 2)
    unit_B = unit_B.to(torch.int64)
    preferred_B = preferred_B.to(score_B.dtype)
    chosen_U = empty_U.index_add(0, unit_B, score_B * preferred_B)
    rejected_U = empty_U.index_add(0, unit_B, score_B * (1 - preferred_B))
    return chosen_U, rejected_U


def batch_mean(loss_U: Tensor, *, denominator: float) -> Tensor:
    """The sum of per-pair (or per-row) losses, divided by the whole batch's count of them.

    Raises:
        TrainingError: a denominator that is not positive.
    """
    _check(loss_U, loss_U, denominator)
    return loss_U.sum() / denominator


def row_sums(value_A: Tensor, row_A: Tensor, rows: int) -> Tensor:
    """Sums ``[B]`` over the action tokens of each of ``rows`` rows; ``row_A`` says which row a token belongs to."""
    return value_A.new_zeros(rows).index_add(0, row_A, value_A)


def decayed(value_A: Tensor, row_A: Tensor, decay: float) -> Tensor:
    """``decay^t · value_t``, ``[A]``, where ``t`` counts a row's actions from 0 (token-decayed DPO: Shao et al. 2025, arXiv
    2502.14340, D2PO). ``row_A`` must not fall: the actions of a row are together and in order.
    """
    if decay == 1.0:
        return value_A
    place_A = torch.arange(len(row_A), device=row_A.device) - torch.searchsorted(row_A, row_A)
    return value_A * decay ** place_A.to(value_A.dtype)


def row_means(value_A: Tensor, row_A: Tensor, rows: int) -> Tensor:
    """Means ``[B]`` over the action tokens of each row; 0 for a row without any."""
    length_B = row_sums(torch.ones_like(value_A), row_A, rows)
    return row_sums(value_A, row_A, rows) / length_B.clamp(min=1)


def _check(first: Tensor, second: Tensor, denominator: float) -> None:
    if first.shape != second.shape:
        raise TrainingError(f"scores of shape {tuple(first.shape)} and {tuple(second.shape)} do not go together")
    if not denominator > 0:
        raise TrainingError(f"a loss cannot be divided by {denominator}; the batch holds nothing to train on")
