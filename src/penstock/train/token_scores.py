"""Log-prob and entropy of chosen tokens from hidden states, in chunks, so that ``[A, V]`` never stands whole in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

CHUNK_ELEMENTS = 1 << 24
"""Largest logits tensor kept at once: 16.8 million numbers, 67 MB in float32."""


Scores = tuple[Tensor, Tensor | None]


class Vocabulary(Protocol):
    """The logits of hidden states, all of them or those of this rank's part of the vocabulary."""

    width: int
    """Most logits of a token on a rank."""

    def logits(self, hidden_AH: Tensor) -> Tensor: ...

    def scores(self, logits_AV: Tensor, target_A: Tensor, entropy: bool) -> Scores: ...


def scores_of(logits_AV: Tensor, target_A: Tensor, entropy: bool) -> Scores:
    """Log-probs ``[A]`` of targets and, if wanted, entropies ``[A]`` under the softmax of whole logits."""
    if not entropy:
        return logits_AV.gather(-1, target_A[:, None]).squeeze(-1) - logits_AV.logsumexp(-1), None
    logp_AV = logits_AV.log_softmax(-1)
    return logp_AV.gather(-1, target_A[:, None]).squeeze(-1), -(logp_AV.exp() * logp_AV).sum(-1)


def token_scores(
    hidden_AH: Tensor,
    target_A: Tensor,
    logits_of: Callable[[Tensor], Tensor],
    vocabulary: int,
    *,
    temperature: float = 1.0,
    entropy: bool = False,
    scores: Callable[[Tensor, Tensor, bool], Scores] = scores_of,
) -> Scores:
    """Log-probs ``[A]`` (and entropies ``[A]``) of targets under softmax(logits / temperature), in float32.

    ``vocabulary`` is the number of logits that ``logits_of`` gives a token, of which ``scores`` makes the results. A single
    chunk keeps its logits for the backward pass; more chunks recompute them there, so memory stays bounded by one chunk
    whatever A and V.
    """
    rows = max(1, CHUNK_ELEMENTS // vocabulary)
    if hidden_AH.shape[0] <= rows:
        return _chunk(hidden_AH, target_A, logits_of, temperature, entropy, scores)
    parts = []
    for hidden, target in zip(hidden_AH.split(rows), target_A.split(rows), strict=True):
        if torch.is_grad_enabled() and hidden.requires_grad:
            parts.append(checkpoint(_chunk, hidden, target, logits_of, temperature, entropy, scores, use_reentrant=False))
        else:
            parts.append(_chunk(hidden, target, logits_of, temperature, entropy, scores))
    logp = torch.cat([part[0] for part in parts])
    return logp, torch.cat([part[1] for part in parts]) if entropy else None


def _chunk(
    hidden_AH: Tensor,
    target_A: Tensor,
    logits_of: Callable[[Tensor], Tensor],
    temperature: float,
    entropy: bool,
    scores: Callable[[Tensor, Tensor, bool], Scores],
) -> Scores:
    logits_AV = logits_of(hidden_AH)
    return scores(logits_AV if temperature == 1.0 else logits_AV / temperature, target_A, entropy)
