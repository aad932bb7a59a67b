"""What a loss sees of Q heads, in chunks, so that ``[A, V]`` never stands whole in memory."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from penstock.models.q_heads import HEADS, QHeads
from penstock.train import token_scores


def q_outputs(heads: QHeads, hidden_AH: Tensor, target_A: Tensor, vocabulary: int) -> dict[str, Tensor]:
    """ "q" and "q/logsumexp" of the trained heads, "q/target" without gradient, and "q/state_value".

    A single chunk keeps its values for the backward pass; more chunks compute them again there.
    """
    rows = max(1, token_scores.CHUNK_ELEMENTS // (HEADS * vocabulary))
    parts = []
    for hidden, target in zip(hidden_AH.split(rows), target_A.split(rows), strict=True):
        if torch.is_grad_enabled() and hidden_AH.shape[0] > rows:
            parts.append(checkpoint(_chunk, heads, hidden, target, use_reentrant=False))
        else:
            parts.append(_chunk(heads, hidden, target))
    return {
        "q": torch.cat([part[0] for part in parts]),
        "q/logsumexp": torch.cat([part[1] for part in parts]),
        "q/target": heads.target_of(hidden_AH, target_A),
        "q/state_value": heads.values(hidden_AH),
    }


def _chunk(heads: QHeads, hidden_AH: Tensor, target_A: Tensor) -> tuple[Tensor, Tensor]:
    q_QAV = heads.all_actions(hidden_AH)
    chosen_QA = q_QAV.gather(-1, target_A.expand(HEADS, -1)[..., None]).squeeze(-1)
    return chosen_QA.T, q_QAV.logsumexp(-1).T
