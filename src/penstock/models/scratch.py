"""Small models from scratch in the Qwen2 shape."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, Qwen2Config

from penstock.core.run import ModelSpec
from penstock.models.language_model import Head, LanguageModel
from penstock.models.text import Text, train_tokenizer


@dataclass(frozen=True)
class Shape:
    """Dimensions of a preset."""

    width: int
    hidden: int
    layers: int
    heads: int
    key_value_heads: int


PRESETS = {
    "1m": Shape(width=128, hidden=384, layers=4, heads=4, key_value_heads=2),
    "3m": Shape(width=256, hidden=704, layers=4, heads=4, key_value_heads=2),
    "10m": Shape(width=384, hidden=1024, layers=6, heads=6, key_value_heads=2),
}


def build_model(
    spec: ModelSpec, corpus: Iterable[str], seed: int, head: Head = "lm", text: Text | None = None
) -> LanguageModel:
    """A model of ``spec.preset`` with random weights (a pure function of ``seed``) and a tokenizer fitted to ``corpus``."""
    text = text if text is not None else train_tokenizer(corpus, spec.vocabulary)
    shape = PRESETS[spec.preset]
    config = Qwen2Config(
        vocab_size=len(text),
        hidden_size=shape.width,
        intermediate_size=shape.hidden,
        num_hidden_layers=spec.layers or shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_value_heads,
        max_position_embeddings=spec.context,
        tie_word_embeddings=True,
        eos_token_id=text.end,
        pad_token_id=text.pad,
        bos_token_id=None,
    )
    config.num_labels = 1
    factory = AutoModelForCausalLM if head == "lm" else AutoModelForSequenceClassification
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = factory.from_config(config, dtype=torch.float32)
    return LanguageModel(network, text, head)
