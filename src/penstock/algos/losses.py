"""Losses as pure functions of tensors.

Shapes are free: every argument has the same shape, be it ``[B, T]`` with zero ``weight`` on padding or packed ``[A]``. A
loss is ``sum(weight * term) / denominator``. The weight says how much each token counts within its batch and the
denominator is the *whole* batch's, so the shares of any split into micro-batches add up to the same loss and gradient:

- mean over tokens: weight 1, denominator = action tokens of the batch;
- mean over sequences of the mean over their tokens: weight 1 / length of the sequence, denominator = rows of the batch;
- sum over a sequence divided by a constant: weight 1 / constant, denominator = rows of the batch.

Cells of weight 0 are never read: a NaN there reaches neither the loss nor a gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

from penstock.algos.kl import ESTIMATORS, LOG_RATIO_LIMIT, Estimator, k3
from penstock.core.errors import TrainingError


def weighted_mean(value: Tensor, weight: Tensor, *, denominator: float) -> Tensor:
    """``sum(weight * value) / denominator``; cells of weight 0 are not read.

    Raises:
        TrainingError: a denominator that is not positive; nothing would be trained.
    """
    if not denominator > 0:
        raise TrainingError(f"a loss cannot be divided by {denominator}; the batch holds nothing to train on")
    return (counted(value, weight) * weight).sum() / denominator


def counted(value: Tensor, weight: Tensor) -> Tensor:
    """``value`` where it counts, 0 elsewhere; cuts the gradient too, which a product with 0 would not do for NaN."""
    return torch.where(weight != 0, value, 0.0)


def log_ratio(logp: Tensor, old_logp: Tensor, weight: Tensor) -> Tensor:
    """``logp - old_logp``, clamped to ±20, and 0 where ``weight`` is 0."""
    return counted(logp - old_logp, weight).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


@torch.no_grad()
def policy_metrics(gap: Tensor, cut: Tensor, weight: Tensor, *, denominator: float) -> dict[str, Tensor]:
    """How far the policy has moved. ``denominator`` is the batch's count of action tokens.

    Args:
        gap: the :func:`log_ratio` of the trained policy to the one the ratio starts from.
        cut: tokens whose gradient the objective cut.
        weight: how much each token counts; those of weight 0 are not counted here either.

    Returns:
        ``policy/clip_fraction``: share of tokens whose gradient was cut. ``policy/approx_kl``: nats per token from the
        starting policy to the trained one (k3). ``max/ratio_deviation``: the largest ``|ratio - 1|``.
    """
    counts = (weight != 0).to(gap.dtype)
    deviation = (gap.exp() - 1).abs()
    return {
        "policy/clip_fraction": weighted_mean(cut.to(gap.dtype), counts, denominator=denominator),
        # The tokens are samples of the starting policy, so it takes the place of the sampler in the estimator.
        "policy/approx_kl": weighted_mean(k3(torch.zeros_like(gap), gap), counts, denominator=denominator),
        "max/ratio_deviation": deviation.max() if deviation.numel() else deviation.new_zeros(()),
    }


def clipped_value_loss(
    value: Tensor, old_value: Tensor, returns: Tensor, weight: Tensor, *, clip: float | None, denominator: float
) -> Tensor:
    """``0.5 * max((V - R)², (clip(V, old ± clip) - R)²)``: the value may not run from its old estimate in one batch.

    Args:
        value: the critic's values (has gradient).
        old_value: its values when the batch was labelled.
        returns: what the values should be.
        clip: largest useful move from ``old_value``; None leaves the squared error alone.
    """
    error = (counted(value, weight) - returns).square()
    if clip is not None:
        clipped = torch.maximum(torch.minimum(counted(value, weight), old_value + clip), old_value - clip)
        error = torch.maximum(error, (clipped - returns).square())
    return 0.5 * weighted_mean(error, weight, denominator=denominator)


@torch.no_grad()
def value_metrics(
    value: Tensor, old_value: Tensor, returns: Tensor, *, clip: float | None, denominator: float
) -> dict[str, Tensor]:
    """``value/squared_error`` and ``value/clip_fraction`` over packed ``[A]``; ``denominator``: the batch's actions."""
    moved = (value - old_value).abs() > (float("inf") if clip is None else clip)
    return {
        "value/squared_error": (value - returns).square().sum() / denominator,
        "value/clip_fraction": moved.sum() / denominator,
    }


def kl_loss(
    logp: Tensor,
    reference_logp: Tensor,
    weight: Tensor,
    *,
    estimator: Estimator,
    denominator: float,
    ratio: Tensor | None = None,
) -> Tensor:
    """Weighted mean of a per-token estimate of the KL to the reference; ``k1`` has no useful gradient here (see kl.py).

    ``ratio`` (trained over drawing policy, with its gradient) weighs the estimates, see ``KLPenalty.reweight``.
    """
    estimate = ESTIMATORS[estimator](counted(logp, weight), counted(reference_logp, weight))
    return weighted_mean(estimate if ratio is None else ratio * estimate, weight, denominator=denominator)
