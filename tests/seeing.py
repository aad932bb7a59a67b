"""Tiny models of media with peaked random weights, pictures, films and sounds for them, and requests that show these."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    AutoModelForMultimodalLM,
    CLIPImageProcessorPil,
    Gemma3Config,
    Idefics3Config,
    LlavaConfig,
    Qwen2AudioConfig,
    Qwen2VLConfig,
    Qwen2VLImageProcessorPil,
    Qwen3VLConfig,
    SmolVLMConfig,
    WhisperFeatureExtractor,
)
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

import tiny_models
from penstock.config.media import Hearing, Vision
from penstock.config.run import ModelSpec
from penstock.core.blobs import Blob, Film, Sound, medium_of
from penstock.core.types import Request, Row, Sampling
from penstock.data.media import MediaStore
from penstock.models.gemma import Gemma
from penstock.models.idefics import BORDER, PART, WHOLE, Idefics
from penstock.models.llava import Llava
from penstock.models.media import MediaText
from penstock.models.media_model import MediaModel
from penstock.models.qwen_audio import QwenAudio
from penstock.models.qwen_vl import QwenVL
from penstock.models.scratch import SOUND_MARKS, VISION_MARKS, VISION_NAMES, build_model
from penstock.models.text import train_tokenizer

SIZES = ((24, 24), (16, 24), (8, 16), (24, 8))
"""Heights and widths of pictures; a token stands for 8 x 8 pixels, so they are 9, 6, 2 and 3 tokens."""


TILES = (BORDER, PART, WHOLE, *(f"<row_{row}_col_{column}>" for row in (1, 2, 3) for column in (1, 2, 3)))
GEMMA_MARKS = ("<start_of_image>", "<image_soft_token>", "<end_of_image>")
PICTURES = ("llava", "gemma3", "idefics3", "smolvlm")
"""Types that read pictures and no films."""


@functools.cache
def _tokenizer(marks: tuple[str, ...] = (*VISION_MARKS, *SOUND_MARKS)):
    return train_tokenizer(tiny_models.CORPUS, 300, marks)


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


def of_kind(kind: str, head: int = 16) -> MediaModel:
    """A tiny model of another type of transformers, of Qwen's with heads as wide as ``head``, or the one of :func:`built`."""
    if kind == "qwen2_5_vl":
        return built()
    others = {"qwen2_audio": _hearing, "llava": _llava, "gemma3": _gemma, "idefics3": _idefics, "smolvlm": _smolvlm}
    marks = {"gemma3": (GEMMA_MARKS,), "idefics3": (TILES,), "smolvlm": (TILES,)}
    text = _tokenizer(*marks.get(kind, ()))
    config, processor = others[kind](text) if kind in others else _qwen(kind, text, head)
    network = AutoModelForMultimodalLM.from_config(config).eval()
    tiny_models.randomise(network)
    with torch.no_grad():
        network.get_input_embeddings().weight.mul_(0.5)
    model = MediaModel(network, MediaText(text, processor))
    model.text.store = MediaStore()
    return model


def _decoder(text: Any) -> dict[str, Any]:
    return {
        "vocab_size": len(text), "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 128, "head_dim": 16, "tie_word_embeddings": True,
    }  # fmt: skip


def _qwen(kind: str, text: Any, head: int) -> tuple[Any, Any]:
    ids = {f"{name}_token_id": text.encode(mark)[0] for name, mark in zip(VISION_NAMES, VISION_MARKS, strict=True)}
    sections = [head // 8, 3 * head // 16, 3 * head // 16]
    heads = {"head_dim": head, "num_attention_heads": 64 // head, "num_key_value_heads": 32 // head}
    turns: Any = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": sections}}
    if kind == "qwen3_vl":  # as published; transformers knows without, vLLM does not
        turns["rope_parameters"]["mrope_interleaved"] = True
    both = {"num_heads": 4, "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2}
    towers: dict[str, Any] = {
        "qwen2_vl": (Qwen2VLConfig, {"depth": 2, "embed_dim": 32, "hidden_size": 64, "mlp_ratio": 2}),
        "qwen3_vl": (Qwen3VLConfig, {
            "depth": 3, "hidden_size": 32, "intermediate_size": 48, "out_hidden_size": 64, "num_position_embeddings": 64,
            "deepstack_visual_indexes": [0, 1],
        }),
    }  # fmt: skip
    make, tower = towers[kind]
    config = make(text_config=_decoder(text) | heads | turns, vision_config=both | tower, tie_word_embeddings=True, **ids)
    processor = Qwen2VLImageProcessorPil(patch_size=4, merge_size=2, temporal_patch_size=2, min_pixels=64, max_pixels=576)
    return config, QwenVL(processor, Vision(), config)


def _llava(text: Any) -> tuple[Any, Any]:
    tower = {
        "model_type": "clip_vision_model", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
        "num_attention_heads": 4, "patch_size": 8, "image_size": 24, "projection_dim": 32,
    }  # fmt: skip
    config = LlavaConfig(
        text_config=_decoder(text) | {"model_type": "llama"}, vision_config=tower, tie_word_embeddings=True,
        image_token_id=text.encode(VISION_MARKS[1])[0],
    )  # fmt: skip
    processor = CLIPImageProcessorPil(size={"shortest_edge": 24}, crop_size={"height": 24, "width": 24})
    return config, Llava(processor, Vision(), config)


def _gemma(text: Any) -> tuple[Any, Any]:
    """Nine tokens a picture, more than two of the layers see."""
    tower = {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "patch_size": 4,
        "image_size": 24,
    }  # fmt: skip
    windows = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
    start, part, end = (text.encode(mark)[0] for mark in GEMMA_MARKS)
    config = Gemma3Config(
        text_config=_decoder(text) | windows | {"query_pre_attn_scalar": 16}, vision_config=tower, mm_tokens_per_image=9,
        boi_token_index=start, image_token_index=part, eoi_token_index=end, tie_word_embeddings=True,
    )  # fmt: skip
    return config, Gemma(Gemma3ImageProcessorPil(size={"height": 24, "width": 24}), Vision(), config)


def _idefics(text: Any, make: Any = Idefics3Config, processor: Any = Idefics3ImageProcessorPil) -> tuple[Any, Any]:
    """Tiles of 16 pixels a side, four tokens each; pictures of 32."""
    tower = {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "patch_size": 4,
        "image_size": 16,
    }  # fmt: skip
    config = make(
        text_config=_decoder(text) | {"model_type": "llama", "pad_token_id": text.pad}, vision_config=tower, scale_factor=2,
        image_token_id=text.encode(PART)[0], tie_word_embeddings=True, pad_token_id=text.pad,
    )  # fmt: skip
    made = processor(size={"longest_edge": 32}, max_image_size={"longest_edge": 16})
    return config, Idefics(made, Vision(), config)


def _smolvlm(text: Any) -> tuple[Any, Any]:
    return _idefics(text, SmolVLMConfig, SmolVLMImageProcessorPil)


def _hearing(text: Any) -> tuple[Any, Any]:
    extractor = WhisperFeatureExtractor(feature_size=16, sampling_rate=2000, hop_length=40, n_fft=80, chunk_length=1)
    tower = {
        "num_mel_bins": 16, "d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 48,
        "max_source_positions": 25,
    }  # fmt: skip
    config = Qwen2AudioConfig(
        audio_config=tower, text_config=_decoder(text) | {"model_type": "qwen2"}, tie_word_embeddings=True,
        audio_token_id=text.encode(SOUND_MARKS[-1])[0],
    )  # fmt: skip
    return config, QwenAudio(extractor, config)


def picture(size: tuple[int, int] = (24, 24), seed: int = 0) -> np.ndarray:
    """Random pixels."""
    return np.random.default_rng([*size, seed]).integers(0, 256, (*size, 3)).astype(np.uint8)


def film(frames: int = 4, size: tuple[int, int] = (24, 24), rate: float = 2.0, seed: int = 0) -> Film:
    """Random frames."""
    return Film(np.stack([picture(size, seed + frame) for frame in range(frames)]), rate)


def sound(seconds: float = 0.5, rate: int = 2000, seed: int = 0) -> Sound:
    """Noise."""
    return Sound(np.random.default_rng(seed).uniform(-1, 1, int(seconds * rate)).astype(np.float32), rate)


def shown(model: MediaModel, *media: Any) -> tuple[Blob, ...]:
    """The blobs of media, which the model can read from now on."""
    return tuple(model.text.store.add(given(one), "a test", Path(), medium_of(one)) for one in media)


def given(medium: Any) -> Any:
    """A medium as a row has it."""
    return tuple(medium) if isinstance(medium, tuple) else medium


def example(kind: str, seed: int = 0) -> tuple[str, Any]:
    """A mark, and a medium that a model of a type reads."""
    if kind == "qwen2_audio":
        return "<audio>", sound(0.3 + 0.2 * seed, seed=seed)
    return ("<image>", picture(seed=seed)) if kind in PICTURES else ("<video>", film(4 - seed, seed=10 * seed))


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


def media_of(model: MediaModel) -> Any:
    """The spec that loads a model's folder."""
    return Hearing() if "audio" in model.text.processor.pads else Vision()


def tiny_text() -> Any:
    """A tokenizer of a model that reads text alone."""
    return train_tokenizer(tiny_models.CORPUS, 300)
