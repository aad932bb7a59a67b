"""What a learner should compute, the slow way: plain transformers on padded rows with an attention mask, whole logits."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from penstock.core.types import Row, Sample
from penstock.models.language_model import LanguageModel


def plain(model: LanguageModel) -> Any:
    """A copy of a model's network with transformers' own attention."""
    network = copy.deepcopy(model.network)
    network.set_attn_implementation("eager")
    return network


@torch.no_grad()
def greedy(model: LanguageModel, sample: Sample, new_tokens: int, **more: Any) -> list[int]:
    """The tokens that ``generate`` of transformers answers the prompt of a sample with; ``more`` are arguments of its own."""
    network, prompt = plain(model), torch.from_numpy(sample.tokens_T[~sample.action_T].astype("int64"))[None]
    found = network.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        do_sample=False,
        max_new_tokens=new_tokens,
        eos_token_id=model.text.end,
        pad_token_id=model.text.pad,
        **more,
    )
    return found[0, 1 if network.config.is_encoder_decoder else prompt.shape[1] :].tolist()


def padded(rows: Sequence[Row]) -> dict[str, Tensor]:
    """Right-padded inputs of plain transformers."""
    longest = max(len(row.tokens_T) for row in rows)
    tokens_BT = torch.zeros(len(rows), longest, dtype=torch.int64)
    mask_BT = torch.zeros(len(rows), longest, dtype=torch.int64)
    for b, row in enumerate(rows):
        tokens_BT[b, : len(row.tokens_T)] = torch.from_numpy(row.tokens_T.astype("int64"))
        mask_BT[b, : len(row.tokens_T)] = 1
    position_BT = torch.arange(longest).expand(len(rows), longest)
    return {"input_ids": tokens_BT, "attention_mask": mask_BT, "position_ids": position_BT}


def token_outputs(network: Any, rows: Sequence[Row], temperature: float = 1.0) -> tuple[list[Tensor], list[Tensor]]:
    """Log-probs and entropies of the action tokens of each row."""
    inputs = padded(rows)
    logp_BTV = (network(**inputs, use_cache=False).logits.float() / temperature).log_softmax(-1)
    logps, entropies = [], []
    for b, row in enumerate(rows):
        at = torch.from_numpy(row.action_T).nonzero()[:, 0]
        logps.append(logp_BTV[b, at - 1, inputs["input_ids"][b, at]])
        entropies.append(-(logp_BTV[b, at - 1].exp() * logp_BTV[b, at - 1]).sum(-1))
    return logps, entropies


def hidden_before_actions(network: Any, rows: Sequence[Row]) -> list[Tensor]:
    """The last hidden states from which the action tokens of each row are predicted."""
    hidden_BTH = network.base_model(**padded(rows), use_cache=False).last_hidden_state
    return [hidden_BTH[b, torch.from_numpy(row.action_T).nonzero()[:, 0] - 1] for b, row in enumerate(rows)]
