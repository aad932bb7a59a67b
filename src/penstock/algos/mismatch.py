"""How far the learner is from the policy that drew the tokens, before a batch's first update: sums over a micro-batch.

Shares of any split into micro-batches add up to the same sums (a name that begins with ``max/`` is a maximum).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from penstock.algos.kl import LOG_RATIO_LIMIT

UNKNOWN, CURRENT, MIXED, OLDER = range(4)
"""Origins of a token: not known; a sample that the learner's version drew whole; the learner's version, in a sample that
older weights began (whose cache may hold their keys and values); an older version."""


@torch.no_grad()
def mismatch_sums(logp_A: Tensor, behaviour_A: Tensor, origin_A: Tensor) -> dict[str, Tensor]:
    """Sums over tokens of the gap ``logp - behaviour`` (clamped to ±20) and of the weights ``exp(gap)``.

    Args:
        logp_A: log-probs under the learner.
        behaviour_A: log-probs under the policy that drew the tokens; not read where the origin is UNKNOWN.
        origin_A: origin of each token.

    Returns:
        Over CURRENT tokens ``sums/current/tokens``, ``sums/current/absolute`` (Σ|gap|), ``sums/current/kl`` (Σ exp(gap) - 1 -
        gap, which estimates the KL from behaviour to learner) and ``max/sums/current`` (largest |gap|); over MIXED ones
        ``sums/mixed/tokens`` and ``sums/mixed/absolute``; over all but UNKNOWN ones ``sums/known/tokens``,
        ``sums/known/weight`` and ``sums/known/square``.
    """
    known_A = origin_A != UNKNOWN
    gap_A = torch.where(known_A, logp_A - behaviour_A, torch.zeros_like(behaviour_A))
    gap_A = gap_A.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    size_A, weight_A = gap_A.abs(), gap_A.exp()
    current_A, mixed_A, known_A = (mask_A.to(gap_A.dtype) for mask_A in (origin_A == CURRENT, origin_A == MIXED, known_A))
    own_A = size_A * current_A
    return {
        "sums/current/tokens": current_A.sum(),
        "sums/current/absolute": own_A.sum(),
        "sums/current/kl": ((weight_A - 1 - gap_A) * current_A).sum(),
        "max/sums/current": own_A.max() if own_A.numel() else own_A.new_zeros(()),
        "sums/mixed/tokens": mixed_A.sum(),
        "sums/mixed/absolute": (size_A * mixed_A).sum(),
        "sums/known/tokens": known_A.sum(),
        "sums/known/weight": (weight_A * known_A).sum(),
        "sums/known/square": (weight_A.square() * known_A).sum(),
    }


def is_sum(name: str) -> bool:
    """Whether a metric is one of these sums."""
    return name.startswith(("sums/", "max/sums/"))


def mismatch_metrics(sums: Mapping[str, float]) -> dict[str, float]:
    """What the sums of a whole batch mean; a metric whose tokens are missing is missing.

    ``mismatch/mean`` and ``mismatch/max`` (|gap|, nats), ``mismatch/kl`` (nats per token) over ``mismatch/tokens`` tokens
    that the learner's own version drew; ``mismatch/stale_cache`` (mean |gap| of tokens that it drew in samples which older
    weights began); ``policy/effective_sample_size``, (Σw)² / (N Σw²) over all tokens, 1 if all weights are equal.
    """
    metrics: dict[str, float] = {}
    if tokens := sums["sums/current/tokens"]:
        metrics |= {
            "mismatch/mean": sums["sums/current/absolute"] / tokens,
            "mismatch/kl": sums["sums/current/kl"] / tokens,
            "mismatch/max": sums["max/sums/current"],
            "mismatch/tokens": tokens,
        }
    if tokens := sums["sums/mixed/tokens"]:
        metrics["mismatch/stale_cache"] = sums["sums/mixed/absolute"] / tokens
    if tokens := sums["sums/known/tokens"]:
        metrics["policy/effective_sample_size"] = sums["sums/known/weight"] ** 2 / (tokens * sums["sums/known/square"])
    return metrics
