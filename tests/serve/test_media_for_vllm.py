"""What is sent to vLLM of prompts with media, as far as that can be seen without it."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import seeing
from penstock.core.errors import GenerationError, SpecError
from penstock.models.media import Medium
from penstock.serve.vllm_media import media_arguments, shown, spans


def medium(parts: int) -> Medium:
    return Medium({}, (), parts)


def test_a_medium_begins_where_one_before_it_has_all_its_parts() -> None:
    media_T = np.array([0, 7, 7, 7, 7, 0, 5, 7, 0, 7])
    found = spans(media_T, {7: medium(2), 5: medium(1)})
    assert [(name, where.tolist()) for name, where in found] == [(7, [1, 2]), (7, [3, 4]), (5, [6]), (7, [7, 9])]


def test_a_type_whose_samples_were_not_compared_is_refused() -> None:
    with pytest.raises(SpecError, match="media reach vLLM for models of the types qwen2_vl, qwen2_5_vl, qwen3_vl"):
        media_arguments(seeing.of_kind("llava").text)


def test_films_of_a_type_that_sends_pictures_alone_are_refused() -> None:
    model = seeing.of_kind("qwen3_vl")
    blobs = seeing.shown(model, seeing.film())
    request = seeing.request(model, "<video>", blobs)
    media_T = model.text.media_columns(request.tokens_T, blobs)["media_T"]
    with pytest.raises(GenerationError, match="video is not sent to vLLM for this model"):
        shown(SimpleNamespace(), model.text, request, request.tokens_T.tolist(), media_T, "1")
