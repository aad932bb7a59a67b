"""The divergence of a model from a frozen teacher at every action token, in chunks: ``[A, V]`` never stands whole in memory."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from penstock.train import token_scores

Logits = Callable[[Tensor], Tensor]
Between = Callable[[Tensor, Tensor], Tensor]


def divergence_outputs(
    hidden_AH: Tensor,
    logits_of: Logits,
    teacher_AH: Tensor,
    teacher_logits_of: Logits,
    between: Between,
    *,
    vocabulary: int,
    temperature: float = 1.0,
) -> Tensor:
    """``between(log-probs, teacher's log-probs)`` of each action token's distribution, ``[A]``, at a temperature.

    Args:
        hidden_AH: hidden states that predict the action tokens (have gradient); widths of the two models may differ.
        teacher_AH: the teacher's, without gradient.
        between: from two ``[A, V]`` of log-probs to ``[A]``.
    """

    def chunk(hidden: Tensor, teacher: Tensor) -> Tensor:
        with torch.no_grad():
            teacher_logp = (teacher_logits_of(teacher) / temperature).log_softmax(-1)
        return between((logits_of(hidden) / temperature).log_softmax(-1), teacher_logp)

    rows = max(1, token_scores.CHUNK_ELEMENTS // (2 * vocabulary))
    again = torch.is_grad_enabled() and hidden_AH.shape[0] > rows
    parts = [
        checkpoint(chunk, hidden, teacher, use_reentrant=False) if again else chunk(hidden, teacher)
        for hidden, teacher in zip(hidden_AH.split(rows), teacher_AH.split(rows), strict=True)
    ]
    return torch.cat(parts)
