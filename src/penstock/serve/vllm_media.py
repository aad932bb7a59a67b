"""Media in prompts for vLLM: what our own processor made of them goes in as it is, so that nothing is resized, counted or
expanded a second time, and engine and learner read the same numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from penstock.core.errors import GenerationError, SpecError
from penstock.core.types import Request
from penstock.models.media import MediaText, Medium, Names

TYPES: Mapping[str, tuple[str, ...]] = {
    "qwen2_vl": ("image", "video"),
    "qwen2_5_vl": ("image", "video"),
    "qwen3_vl": ("image",),
}
"""Kinds of media that are sent for models of a type: those whose samples were seen to be the embedded engine's."""
MOST = 64
"""Media of one kind that a prompt may show; vLLM wants a bound."""


def media_arguments(text: MediaText) -> dict[str, Any]:
    """What vLLM is opened with for a model that reads media. Its own processor wants a tokenizer, though it is never called.

    Raises:
        SpecError: media are not sent for models of this type.
    """
    kinds = kinds_of(text)
    if not kinds:
        raise SpecError(f"media reach vLLM for models of the types {', '.join(TYPES)}; set roles.engine=Embedded for others")
    return {
        "skip_tokenizer_init": False,
        "limit_mm_per_prompt": {kind: MOST if kind in kinds else 0 for kind in ("image", "video", "audio")},
        "mm_processor_cache_gb": 0,
        "mm_device_do_normalize": False,
    }


def kinds_of(text: MediaText) -> tuple[str, ...]:
    """The kinds of media that are sent for a model."""
    config: Any = getattr(text.processor, "config", None)
    return TYPES.get(getattr(config, "model_type", ""), ())


def shown(engine: Any, text: MediaText, request: Request, tokens: Sequence[int], media_T: Names, label: str) -> Any:
    """The prompt of a request with media, as vLLM's core takes it.

    Args:
        tokens: those of the request and what was generated so far.
        media_T: the number of the medium that each token of the request shows a part of.
        label: names the weights of the tower: what vLLM's encoder gave under others is not read.

    Raises:
        GenerationError: a medium of a kind that is not sent for models of this type.
    """
    if unsent := {blob.medium for blob in request.blobs} - set(kinds_of(text)):
        raise GenerationError(f"{request.key}: {min(unsent)} is not sent to vLLM for this model; set roles.engine=Embedded")
    from vllm.inputs.engine import mm_input
    from vllm.multimodal.inputs import MultiModalKwargsItems, PlaceholderRange

    fields = engine.renderer.get_mm_processor()._get_mm_fields_config  # the model's own account of what its tower reads
    kinds = {blob.number: blob.medium for blob in request.blobs}
    media = {number: text.senses.of(number) for number in kinds}
    items, hashes, places = ({kind: list[Any]() for kind in kinds.values()} for _ in range(3))
    for number, where in spans(media_T, media):
        kind, inputs = kinds[number], dict(media[number].inputs)
        items[kind] += MultiModalKwargsItems.from_hf_inputs(inputs, fields(inputs, {}))[kind]
        hashes[kind].append(f"{number:015x} {label}")
        first, length = int(where[0]), int(where[-1] - where[0]) + 1
        inside = torch.zeros(length, dtype=torch.bool).index_fill(0, torch.from_numpy(where - first), True)
        places[kind].append(PlaceholderRange(first, length, None if bool(inside.all()) else inside))
    return mm_input([*map(int, tokens)], MultiModalKwargsItems(items), hashes, places, cache_salt=label)


def spans(media_T: Names, media: Mapping[int, Medium]) -> list[tuple[int, Any]]:
    """The number of each medium that tokens show, in order, and the places of its parts. The same one twice is two."""
    found: list[tuple[int, Any]] = []
    where_P, at = np.flatnonzero(media_T), 0
    while at < len(where_P):
        name = int(media_T[where_P[at]])
        found.append((name, where_P[at : at + media[name].parts]))
        at += media[name].parts
    return found
