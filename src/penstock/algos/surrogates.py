"""Surrogates of the policy objective: from ratios and advantages to what each token gains.

Every function takes tensors of one shape and gives ``(gain, cut)``: the gain of each token, whose weighted mean is to be
*raised*, and which tokens' gradient a border cut (for metrics; True or False). Nothing here averages, so any split of a
batch into micro-batches gives the same sum; what spans a whole sequence is gathered by ``row_A``, the row of each action,
which is never split. Cells of weight 0 hold a log-ratio of 0 (see :func:`penstock.algos.losses.log_ratio`).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from penstock.algos.kl import LOG_RATIO_LIMIT
from penstock.algos.preference import row_sums
from penstock.core.errors import TrainingError

Gain = tuple[Tensor, Tensor]

SMALLEST = 1e-8
"""A lower border of 0 has no logarithm; this replaces it."""


def row_sum(value_A: Tensor, row_A: Tensor) -> Tensor:
    """Each token gets the sum over its row, ``[A]``."""
    slot_A = torch.searchsorted(row_A.sort().values, row_A)  # where a row would begin: no more slots than tokens, whatever rows
    return row_sums(value_A, slot_A, len(row_A))[slot_A]


def row_mean(value_A: Tensor, weight_A: Tensor, row_A: Tensor) -> Tensor:
    """Each token gets the mean over the counted tokens (weight not 0) of its row, ``[A]``."""
    counted_A = (weight_A != 0).to(value_A.dtype)
    return row_sum(value_A * counted_A, row_A) / row_sum(counted_A, row_A).clamp(min=1)


def sequence_ratio(gap_A: Tensor, weight_A: Tensor, row_A: Tensor) -> Tensor:
    """The geometric mean of a row's token ratios, at each of its tokens (GSPO: Zheng et al. 2025, arXiv 2507.18071)."""
    return row_mean(gap_A, weight_A, row_A).exp()


def product_ratio(gap_A: Tensor, weight_A: Tensor, row_A: Tensor) -> Tensor:
    """The product of a row's token ratios, at each of its tokens: the ratio of the whole answer as one action.

    (RLOO: Ahmadian et al. 2024, arXiv 2402.14740.) Its logarithm is clamped to ±20.
    """
    whole_A = row_sum(gap_A * (weight_A != 0).to(gap_A.dtype), row_A)
    return whole_A.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def sequence_token_ratio(gap_A: Tensor, weight_A: Tensor, row_A: Tensor) -> Tensor:
    """The number of :func:`sequence_ratio` with the gradient of the token's own ratio (GSPO-token, arXiv 2507.18071)."""
    return sequence_ratio(gap_A, weight_A, row_A).detach() * (gap_A - gap_A.detach()).exp()


def clipped(ratio: Tensor, advantage: Tensor, *, low: float, high: float, dual: float = 0.0) -> Gain:
    """``min(ratio * A, clip(ratio, 1 - low, 1 + high) * A)`` (PPO: Schulman et al. 2017, arXiv 1707.06347, eq. 7).

    A token's gradient stops once its ratio has left the interval in the direction that its advantage wanted.
    ``low != high`` is the asymmetric clip of DAPO (arXiv 2503.14476); ``low=1, high=inf`` never clips and leaves the
    importance-weighted policy gradient.

    Args:
        ratio: probability ratio of the trained policy to the one it started from, per token or per sequence.
        advantage: advantage of each token.
        dual: where the advantage is negative, the gain is at least ``dual * A``, so that a token which has become far
            more probable cannot dominate (dual clip: Ye et al. 2020, arXiv 1912.09729); 0 switches this off.
    """
    gain = torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)
    cut = ((advantage > 0) & (ratio > 1 + high)) | ((advantage < 0) & (ratio < 1 - low))
    if dual:
        gain = torch.where(advantage < 0, torch.maximum(gain, dual * advantage), gain)
        cut = cut | ((advantage < 0) & (ratio > dual))
    return gain, cut


def guarded(gap_A: Tensor, mean_AD: Tensor, start_AD: Tensor, deviation_A: Tensor) -> Tensor:
    """``s · (log ratio + mean (μ - μ_start)² / 2s²)`` of steps to ``N(μ, s²)``, ``[A]`` (GRPO-Guard: arXiv 2510.22319): the
    mean over dimensions of ``ε (μ - μ_start)``, where ``ε`` is the noise that was added. Its mean is 0 whatever ``s`` is."""
    return deviation_A * (gap_A + (mean_AD - start_AD).square().flatten(1).mean(1) / (2 * deviation_A.square()))


def policy_gradient(logp: Tensor, advantage: Tensor) -> Gain:
    """``A * logp``: the score-function estimator (REINFORCE: Williams 1992, eq. 4); nothing is cut."""
    return advantage * logp, torch.zeros_like(advantage, dtype=torch.bool)


def clipped_weight(ratio: Tensor, logp: Tensor, advantage: Tensor, *, low: float, high: float) -> Gain:
    """``stop(clip(ratio, 1 - low, 1 + high)) * A * logp`` (CISPO: MiniMax 2025, arXiv 2506.13585).

    The importance weight is cut and not the gradient, so every token keeps learning. ``low=1, high=4`` is the truncated
    weight ``min(ratio, 5)`` of PipelineRL (arXiv 2509.19128).
    """
    weight = ratio.detach().clamp(1 - low, 1 + high)
    return weight * advantage * logp, (ratio > 1 + high) | (ratio < 1 - low)


def geometric_mean(gap_A: Tensor, advantage_A: Tensor, weight_A: Tensor, row_A: Tensor, *, low: float, high: float) -> Gain:
    """``A * exp(mean over the row of the clipped log-ratios)`` at each token of the row (GMPO: arXiv 2507.20673).

    The clip is per token, in log space, and pessimistic as in PPO: a ratio may not leave the interval in the direction
    that the advantage wants. The mean is over a row, never over a micro-batch. Needs one advantage per row.
    """
    bottom, top = torch.log(gap_A.new_tensor([max(1 - low, SMALLEST), 1 + high])).unbind()
    sign_A = torch.where(advantage_A < 0, -1.0, 1.0).to(gap_A.dtype)
    least_A = sign_A * torch.minimum(sign_A * gap_A, sign_A * gap_A.clamp(bottom, top))
    cut_A = ((advantage_A > 0) & (gap_A > top)) | ((advantage_A < 0) & (gap_A < bottom))
    return advantage_A * sequence_ratio(least_A, weight_A, row_A), cut_A


def soft_gate(ratio: Tensor, advantage: Tensor, *, positive: float, negative: float) -> Gain:
    """``4 / tau * sigmoid(tau * (ratio - 1)) * A``: a smooth gate in the clip's place (SAPO: arXiv 2511.20347).

    At ratio 1 the gradient is that of ``ratio * A``; it fades on both sides. ``tau`` is ``positive`` or ``negative``, by the
    sign of the advantage; the larger it is, the faster. Nothing is cut.
    """
    temperature = torch.where(advantage > 0, positive, negative).to(ratio.dtype)
    gate = 4 / temperature * torch.sigmoid(temperature * (ratio - 1))
    return gate * advantage, torch.zeros_like(advantage, dtype=torch.bool)


def tapered(gap_A: Tensor, logp_A: Tensor, advantage_A: Tensor, row_A: Tensor, *, low: float, high: float) -> Gain:
    """``A * logp`` where A > 0, ``stop(clip(ratio of the row, low, high)) * A * logp`` where A < 0 (TOPR: arXiv 2503.14286).

    The ratio is that of the whole sequence, a product over its tokens. Good answers are imitated whatever their ratio; bad
    ones stop counting once the policy has given them up, which keeps the loss bounded without a reference.
    """
    whole_A = row_sum(gap_A.detach(), row_A).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    weight_A = torch.where(advantage_A > 0, torch.ones_like(whole_A), whole_A.clamp(low, high))
    cut_A = (advantage_A < 0) & ((whole_A < low) | (whole_A > high))
    return weight_A * advantage_A * logp_A, cut_A


def total_variation(logp: Tensor, old_logp: Tensor) -> Tensor:
    """Total variation between "this token or another" under both policies: ``|p - q|`` (arXiv 2602.04879)."""
    return (logp.exp() - old_logp.exp()).abs()


def binary_kl(logp: Tensor, old_logp: Tensor) -> Tensor:
    """``q log(q/p) + (1-q) log((1-q)/(1-p))``: KL of "this token or another", old policy ``q`` first (arXiv 2602.04879)."""
    old = old_logp.exp().clamp(max=1.0)
    rest, old_rest = (1 - logp.exp()).clamp(min=SMALLEST), (1 - old).clamp(min=SMALLEST)
    return old * (old_logp - logp) + old_rest * (old_rest.log() - rest.log())


def divergence_masked(ratio: Tensor, divergence: Tensor, advantage: Tensor, *, threshold: float, cap: float = math.inf) -> Gain:
    """``min(ratio, cap) * A``, without gradient where the policy has moved too far the way A wants (DPPO: arXiv 2602.04879).

    Too far means that ``divergence`` of the token exceeds ``threshold``: a rare token's ratio may grow while its probability
    hardly moves, and a frequent token's the other way round. The cap bounds value and gradient (truncated importance sampling):
    beyond it the gradient is that of ``cap * A * logp``.
    """
    ratio = ratio * (cap / ratio.detach()).clamp(max=1.0)
    away = ((advantage > 0) & (ratio > 1)) | ((advantage < 0) & (ratio < 1))
    cut = away & (divergence.detach() > threshold)
    return torch.where(cut, ratio.detach(), ratio) * advantage, cut


def detached(gain: Gain, chosen: Tensor) -> Gain:
    """A surrogate without the gradient of the ``chosen`` tokens (Clip-Cov: Cui et al. 2025, arXiv 2505.22617)."""
    value, cut = gain
    return torch.where(chosen != 0, value.detach(), value), cut | (chosen != 0)


def penalised(ratio: Tensor, gap: Tensor, advantage: Tensor, chosen: Tensor, *, coefficient: float) -> Gain:
    """``ratio * A``, less ``coefficient * |log ratio|`` for the ``chosen`` tokens (KL-Cov: arXiv 2505.22617)."""
    return ratio * advantage - coefficient * gap.abs() * chosen, torch.zeros_like(chosen, dtype=torch.bool)


def check_one_advantage_a_row(advantage_A: Tensor, row_A: Tensor) -> None:
    """Refuse advantages that differ within a row where an equation has one per sequence.

    Raises:
        TrainingError: they differ.
    """
    if advantage_A.numel():
        one_B = advantage_A.new_zeros(int(row_A.max()) + 1)
        one_B[row_A] = advantage_A
        if not torch.equal(one_B[row_A], advantage_A):
            raise TrainingError("a geometric mean over a sequence needs one advantage for all its tokens")
