"""Small models from scratch in the Qwen2 shape."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, Qwen2Config

from penstock.core.run import ModelSpec
from penstock.models.language_model import Head, LanguageModel
from penstock.models.presets import PRESETS
from penstock.models.text import Text, train_tokenizer


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
        # Defaults are made for widths in the thousands and contexts as long: small models learn several times faster with
        # weights of unit scale and rotary wavelengths of the order of their context (docs/log.md).
        initializer_range=spec.initializer_range or shape.width**-0.5,
        rope_parameters={"rope_type": "default", "rope_theta": 10.0 * spec.context},
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
