"""A tiny vision-language model with peaked random weights, pictures for it, and requests that show them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForImageTextToText, Qwen2VLConfig, Qwen2VLImageProcessorPil, Qwen3VLConfig

import tiny_models
from penstock.config.run import ModelSpec
from penstock.config.media import Vision
from penstock.core.blobs import Blob
from penstock.core.types import Request, Row, Sampling
from penstock.data.media import MediaStore
from penstock.models.qwen_vl import QwenVL
from penstock.models.scratch import build_model
from penstock.models.scratch_media import VISION_MARKS, VISION_NAMES
from penstock.models.text import train_tokenizer
from penstock.models.media import MediaText
from penstock.models.media_model import MediaModel

SIZES = ((24, 24), (16, 24), (8, 16), (24, 8))
"""Heights and widths of pictures; a token stands for 8 x 8 pixels, so they are 9, 6, 2 and 3 tokens."""


@functools.cache
def _tokenizer():
    return train_tokenizer(tiny_models.CORPUS, 300, VISION_MARKS)


def built(frozen: bool = True, context: int = 128) -> MediaModel:
    """A model of two layers and a tower of two, whose text holds pictures in memory."""
    spec = ModelSpec(layers=2, vocabulary=300, context=context, media=Vision(frozen=frozen))
    model = build_model(spec, (), 0, text=_tokenizer())
    tiny_models.randomise(model.network)
    with torch.no_grad():
        model.network.get_input_embeddings().weight.mul_(0.5)
    model.text.store = MediaStore()
    model.forget()
    return model


def of_kind(kind: str) -> MediaModel:
    """A tiny model of another type of transformers."""
    text = _tokenizer()
    names = zip(VISION_NAMES, VISION_MARKS, strict=True)
    ids = {f"{name}_token_id": text.encode(mark)[0] for name, mark in names}
    decoder = {
        "vocab_size": len(text), "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 128, "head_dim": 16, "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]},
    }  # fmt: skip
    both = {"num_heads": 4, "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2}
    towers: dict[str, Any] = {
        "qwen2_vl": (Qwen2VLConfig, {"depth": 2, "embed_dim": 32, "hidden_size": 64, "mlp_ratio": 2}),
        "qwen3_vl": (Qwen3VLConfig, {
            "depth": 3, "hidden_size": 32, "intermediate_size": 48, "out_hidden_size": 64, "num_position_embeddings": 64,
            "deepstack_visual_indexes": [0, 1],
        }),
    }  # fmt: skip
    make, tower = towers[kind]
    config = make(text_config=decoder, vision_config=both | tower, tie_word_embeddings=True, **ids)
    network = AutoModelForImageTextToText.from_config(config).eval()
    tiny_models.randomise(network)
    processor = Qwen2VLImageProcessorPil(patch_size=4, merge_size=2, temporal_patch_size=2, min_pixels=64, max_pixels=576)
    model = MediaModel(network, MediaText(text, QwenVL(processor, Vision(), config)))
    model.text.store = MediaStore()
    return model


def picture(size: tuple[int, int] = (24, 24), seed: int = 0) -> np.ndarray:
    """Random pixels."""
    return np.random.default_rng([*size, seed]).integers(0, 256, (*size, 3)).astype(np.uint8)


def shown(model: MediaModel, *pictures: np.ndarray) -> tuple[Blob, ...]:
    """The blobs of pictures, which the model can see from now on."""
    return tuple(model.text.store.add(one, "a test", Path()) for one in pictures)


def request(
    model: MediaModel, text: str, blobs: Sequence[Blob] = (), ordinal: int = 0, sample: int = 0, **sampling: Any
) -> Request:
    """A request whose prompt shows pictures where ``<image>`` stands."""
    tokens = np.asarray(model.text.showing(blobs).prompt(text), np.int32)
    how = Sampling(**({"max_new_tokens": 8} | sampling))
    return Request(tiny_models.key(ordinal, sample), tokens, how, blobs=tuple(blobs))


def ragged(model: MediaModel, **sampling: Any) -> list[Request]:
    """Prompts of different lengths with no picture, one, two, and the same one twice."""
    large, middle, small, thin = shown(model, *(picture(size) for size in SIZES))
    return [
        request(model, "what is the sum?", (), 0, **sampling),
        request(model, "<image>what is it?", (large,), 1, **sampling),
        request(model, "3 + <image> or <image> 4", (middle, small), 2, **sampling),
        request(model, "<image><image>", (thin, thin), 3, **sampling),
        request(model, "the quick brown fox jumps over the lazy dog <image>", (large,), 4, **sampling),
        request(model, "12 - 5", (), 5, **sampling),
    ]


def row(model: MediaModel, text: str, answer: Sequence[int], blobs: Sequence[Blob] = (), **fields: Any) -> Row:
    """A row whose actions are ``answer``."""
    prompt = model.text.showing(blobs).prompt(text)
    tokens_T = np.asarray([*prompt, *answer], np.int32)
    columns = {"tokens_T": tokens_T, **model.text.media_columns(tokens_T, blobs)}
    return Row(columns, np.arange(len(tokens_T)) >= len(prompt), fields)


def transformers_logits(model: MediaModel, tokens_T: np.ndarray, blobs: Sequence[Blob]) -> torch.Tensor:
    """Logits ``[T, V]`` of one row as transformers computes them, without our attention, positions and expansion."""
    from penstock.models.attention import eager_attention

    seen = [model.text.senses.of(blob.number) for blob in blobs]
    tokens = torch.from_numpy(tokens_T.astype(np.int64))[None]
    more = model.text.processor.arguments(seen, tokens) if seen else {}
    with torch.no_grad(), eager_attention(model.network):
        if model.text.processor.mrope:
            model.network.model.rope_deltas = None
        return model.network(input_ids=tokens, attention_mask=torch.ones_like(tokens), use_cache=False, **more).logits[0]


def tiny_text() -> Any:
    """A tokenizer of a model that reads text alone."""
    return train_tokenizer(tiny_models.CORPUS, 300)
