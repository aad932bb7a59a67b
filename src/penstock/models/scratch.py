"""Small models from scratch: decoders in the Qwen2 shape, encoder-decoders in the T5 shape."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    Qwen2Config,
    T5Config,
)

from penstock.config.run import ModelSpec
from penstock.models.encoder_decoder import EncoderDecoderModel
from penstock.models.language_model import Head, LanguageModel
from penstock.models.presets import PRESETS, preset_shape
from penstock.models.scratch_media import build_media_model, marks_of
from penstock.models.text import Text, train_tokenizer

RELATIVE_RANGE = 3.0
"""Standard deviation of the first relative biases. T5's own, one over the root of the width, hardly tells positions apart, and
nothing else in these models does: small ones then learn order several times slower (docs/log.md)."""


def build_model(
    spec: ModelSpec, corpus: Iterable[str], seed: int, head: Head = "lm", text: Text | None = None
) -> LanguageModel:
    """A model of ``spec.preset`` with random weights (a pure function of ``seed``) and a tokenizer fitted to ``corpus``."""
    text = (
        text
        if text is not None
        else train_tokenizer(corpus, spec.vocabulary, marks_of(spec.media) if spec.media is not None else ())
    )
    if spec.architecture == "encoder-decoder":
        return _build_encoder_decoder(spec, seed, head, text)
    if spec.media is not None:
        return build_media_model(_decoder(spec, text), spec, seed, head, text)
    rotary = {"rope_type": "default", "rope_theta": 10.0 * spec.context}
    config = Qwen2Config(**_decoder(spec, text), rope_parameters=rotary)
    config.num_labels = 1
    factory = AutoModelForCausalLM if head == "lm" else AutoModelForSequenceClassification
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = factory.from_config(config, dtype=torch.float32)
    return LanguageModel(network, text, head)


def _decoder(spec: ModelSpec, text: Text) -> dict[str, Any]:
    """A preset's decoder, but for its rotary embedding."""
    shape = PRESETS[spec.preset]
    return {
        "vocab_size": len(text), "hidden_size": shape.width, "intermediate_size": shape.hidden,
        "num_hidden_layers": spec.layers or shape.layers, "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.key_value_heads, "max_position_embeddings": spec.context,
        # Defaults are made for widths in the thousands and contexts as long: small models learn several times faster with
        # weights of unit scale and rotary wavelengths of the order of their context (docs/log.md).
        "initializer_range": spec.initializer_range or shape.width**-0.5,
        "tie_word_embeddings": True, "eos_token_id": text.end, "pad_token_id": text.pad, "bos_token_id": None,
    }  # fmt: skip


def _build_encoder_decoder(spec: ModelSpec, seed: int, head: Head, text: Text) -> EncoderDecoderModel:
    """T5 version 1.1 (gated feed-forward) with the first one's shared, scaled output head and its first weights, except that
    the relative biases start larger.

    The preset's layers are divided between encoder and decoder, which keeps its size; ``spec.layers`` counts those of each.
    """
    shape = preset_shape(spec.preset, spec.layers, encoder=True)
    extra: dict[str, Any] = {"n_positions": spec.context, "decoder_start_token_id": text.pad, "tie_word_embeddings": True}
    config = T5Config(
        vocab_size=len(text),
        d_model=shape.width,
        d_kv=shape.width // shape.heads,
        d_ff=shape.hidden,
        num_layers=shape.encoder_layers,
        num_decoder_layers=shape.layers,
        num_heads=shape.heads,
        feed_forward_proj="gated-gelu",
        dropout_rate=0.0,
        eos_token_id=text.end,
        pad_token_id=text.pad,
        **extra,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = AutoModelForSeq2SeqLM.from_config(config, dtype=torch.float32)
        for module in network.modules():
            if getattr(module, "has_relative_attention_bias", False):
                torch.nn.init.normal_(module.relative_attention_bias.weight, std=RELATIVE_RANGE)
    return EncoderDecoderModel(network.eval(), text, head)
