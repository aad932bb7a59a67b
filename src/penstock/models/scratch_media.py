"""Small models of media from scratch: in the Qwen2.5-VL shape those that see, in the Qwen2-Audio shape those that hear."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    AutoModelForMultimodalLM,
    Qwen2_5_VLConfig,
    Qwen2AudioConfig,
    Qwen2VLImageProcessorPil,
    WhisperFeatureExtractor,
)

from penstock.config.media import Hearing, Media, Vision
from penstock.config.run import ModelSpec
from penstock.models.language_model import Head
from penstock.models.media import MediaText
from penstock.models.media_model import MediaModel
from penstock.models.presets import PRESETS
from penstock.models.qwen_audio import AROUND, QwenAudio
from penstock.models.qwen_vl import QwenVL
from penstock.models.text import Text

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
