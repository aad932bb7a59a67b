"""Small models from scratch: decoders in the Qwen2 shape, encoder-decoders in the T5 shape."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMultimodalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    Qwen2_5_VLConfig,
    Qwen2AudioConfig,
    Qwen2Config,
    Qwen2VLImageProcessorPil,
    T5Config,
    WhisperFeatureExtractor,
)

from penstock.config.media import Hearing, Media, Vision
from penstock.config.run import ModelSpec
from penstock.models.encoder_decoder import EncoderDecoderModel
from penstock.models.language_model import Head, LanguageModel
from penstock.models.media import MediaText
from penstock.models.media_model import MediaModel
from penstock.models.presets import PRESETS, preset_shape
from penstock.models.qwen_audio import AROUND, QwenAudio
from penstock.models.qwen_vl import QwenVL
from penstock.models.text import Text, train_tokenizer

VISION_NAMES = ("vision_start", "image", "vision_end", "video")
VISION_MARKS = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>", "<|video_pad|>")
"""Qwen's marks of pictures and films, one token each."""
SOUND_MARKS = (*AROUND, "<|AUDIO|>")
FRAMES = 50
"""Mel features of a second of sound, for a model from scratch; a token is four of them."""


def marks_of(media: Media) -> tuple[str, ...]:
    """Texts that are a token each in the tokenizer of a model from scratch."""
    return VISION_MARKS if isinstance(media, Vision) else SOUND_MARKS


def build_media_model(decoder: dict[str, Any], spec: ModelSpec, seed: int, head: Head, text: Text) -> MediaModel:
    """A model with random weights (a pure function of ``seed``) around a ``decoder`` as one that reads text alone has it."""
    media: Media = spec.media  # type: ignore[assignment]
    made = _vision(decoder, spec, media, text) if isinstance(media, Vision) else _hearing(decoder, spec, media, text)
    config, processor = made
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = AutoModelForMultimodalLM.from_config(config, dtype=torch.float32)
    return MediaModel(network.eval(), MediaText(text, processor), head, media.frozen)


def _vision(decoder: dict[str, Any], spec: ModelSpec, vision: Vision, text: Text) -> tuple[Any, QwenVL]:
    """Qwen2.5-VL's shape (arXiv:2502.13923) with a tower of half the decoder's width: two layers, the first within windows of
    16 pixels, on patches of 4 x 4, of which 2 x 2 are one token. A second of film is two positions in time."""
    shape, width = PRESETS[spec.preset], PRESETS[spec.preset].width // 2
    head_width = shape.width // shape.heads
    sections = [head_width // 8, head_width * 3 // 16, head_width * 3 // 16]  # Qwen's shares of time, height and width
    ids: dict[str, Any] = {"eos_token_id": text.end, "pad_token_id": text.pad}
    ids |= {f"{name}_token_id": text.encode(mark)[0] for name, mark in zip(VISION_NAMES, VISION_MARKS, strict=True)}
    config = Qwen2_5_VLConfig(
        text_config={
            **decoder, "rope_parameters": {
                "rope_type": "default", "rope_theta": 10.0 * spec.context, "mrope_section": sections,
            },
        },
        vision_config={
            "depth": 2, "hidden_size": width, "intermediate_size": 2 * width, "num_heads": 4, "out_hidden_size": shape.width,
            "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2, "window_size": 16, "fullatt_block_indexes": [1],
            "initializer_range": width**-0.5, "tokens_per_second": 2,
        },
        tie_word_embeddings=True, **ids,
    )  # fmt: skip
    processor = Qwen2VLImageProcessorPil(patch_size=4, merge_size=2, temporal_patch_size=2, min_pixels=64, max_pixels=24 * 24)
    return config, QwenVL(processor, vision, config)


def _hearing(decoder: dict[str, Any], spec: ModelSpec, hearing: Hearing, text: Text) -> tuple[Any, QwenAudio]:
    """Qwen2-Audio's shape (arXiv:2407.10759) with a tower of half the decoder's width: two layers on 40 mel bands."""
    width, hop = PRESETS[spec.preset].width // 2, hearing.rate // FRAMES
    extractor = WhisperFeatureExtractor(
        feature_size=40, sampling_rate=hearing.rate, hop_length=hop, n_fft=2 * hop, chunk_length=hearing.seconds
    )
    both: dict[str, Any] = {"eos_token_id": text.end, "pad_token_id": text.pad, "tie_word_embeddings": True}
    config = Qwen2AudioConfig(
        audio_config={
            "num_mel_bins": 40, "d_model": width, "encoder_layers": 2, "encoder_attention_heads": 4,
            "encoder_ffn_dim": 2 * width, "max_source_positions": hearing.seconds * FRAMES // 2,
            "initializer_range": width**-0.5,
        },
        text_config={
            "model_type": "qwen2", **decoder,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10.0 * spec.context},
        },
        audio_token_index=text.encode(SOUND_MARKS[-1])[0], **both,
    )  # fmt: skip
    return config, QwenAudio(extractor, config)


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
