"""A tiny encoder-decoder with random weights, peaked enough that a wrong mask, bias or position shows; and its plain twin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForSeq2SeqLM

import naive
import tiny_models
from penstock.core.types import Row
from penstock.models.encoder_decoder import EncoderDecoderModel
from penstock.models.language_model import Head
from penstock.models.text import Text

ARCHITECTURES = ("t5", "mt5", "umt5")


def build(text: Text, architecture: str = "t5", head: Head = "lm", **changes: Any) -> EncoderDecoderModel:
    """Two encoder and three decoder layers of width 32; few, short distance buckets, so that all of them are met."""
    shape: dict[str, Any] = {
        "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4,
        "relative_attention_num_buckets": 8, "relative_attention_max_distance": 12, "n_positions": tiny_models.CONTEXT,
        "vocab_size": len(text), "pad_token_id": text.pad, "eos_token_id": text.end, "decoder_start_token_id": text.pad,
    }  # fmt: skip
    config = AutoConfig.for_model(architecture, **(shape | changes))
    with torch.random.fork_rng(devices=[]):
        network = AutoModelForSeq2SeqLM.from_config(config, dtype=torch.float32)
    tiny_models.randomise(network)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name.endswith("Attention.q.weight"):  # T5's attention has no scale of its own
                parameter.mul_(network.config.d_kv**-0.5)
        if architecture != "mt5":  # logits are scaled by the root of the width, which would make them nearly even
            network.shared.weight.mul_(3.0)
    return EncoderDecoderModel(network.eval(), text, head)


def decoder_hidden(network: Any, row: Row, start: int) -> Tensor:
    """Hidden states of plain transformers for one row alone: one after the start token and one after each answer token."""
    prompt = int(row.action_T.argmax()) if row.action_T.any() else len(row.tokens_T)
    tokens = torch.from_numpy(row.tokens_T.astype("int64"))[None]
    answer = torch.cat([torch.tensor([[start]]), tokens[:, prompt:]], 1)
    encoded = network.encoder(input_ids=tokens[:, :prompt]).last_hidden_state
    return network.decoder(input_ids=answer, encoder_hidden_states=encoded, use_cache=False).last_hidden_state[0]


def token_outputs(
    model: EncoderDecoderModel, rows: Sequence[Row], temperature: float = 1.0
) -> tuple[list[Tensor], list[Tensor]]:
    """Log-probs and entropies of each row's action tokens by plain transformers; gradients go to ``model``'s twin of
    :func:`naive.plain`."""
    return outputs_of(naive.plain(model), rows, model.start, temperature)


def outputs_of(network: Any, rows: Sequence[Row], start: int, temperature: float = 1.0) -> tuple[list[Tensor], list[Tensor]]:
    """Log-probs and entropies of each row's action tokens, row by row through the network's own forward."""
    logps, entropies = [], []
    for row in rows:
        prompt = int(row.action_T.argmax())
        tokens = torch.from_numpy(row.tokens_T.astype("int64"))[None]
        answer = torch.cat([torch.tensor([[start]]), tokens[:, prompt:-1]], 1)
        logits = network(input_ids=tokens[:, :prompt], decoder_input_ids=answer, use_cache=False).logits[0]
        logp_AV = (logits / temperature).log_softmax(-1)
        logps.append(logp_AV.gather(-1, tokens[0, prompt:, None]).squeeze(-1))
        entropies.append(-(logp_AV.exp() * logp_AV).sum(-1))
    return logps, entropies
