"""Token ids, requests and samples as JSON, for our server and the generator that drives it. Floats keep their exact values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from penstock.config.spec import parse
from penstock.core.types import IntArray, PromptKey, Request, Sample, SampleKey, Sampling
from penstock.web.fields import Fields, shown
from penstock.web.refusals import Refusal

FINISHES = ("stop", "length", "abort", "error")


def is_tokens(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, int) and not isinstance(one, bool) for one in value)


def tokens_of(value: Any, name: str, vocabulary: int) -> IntArray:
    """Token ids ``[T]`` of a JSON list. Raises Refusal for anything but ids of the vocabulary, and for none at all."""
    if not is_tokens(value):
        raise Refusal(400, f"{name}: {shown(value)} is no list of token ids", param=name)
    stray = next((token for token in value if not 0 <= token < vocabulary), None)
    if stray is not None:
        raise Refusal(400, f"{name}: the token id {shown(stray)} is outside the vocabulary of {vocabulary}", param=name)
    return np.asarray(value, np.int32)


def request_to(request: Request) -> dict[str, Any]:
    """A request as JSON values."""
    return {
        "key": [*request.key.prompt, request.key.sample],
        "tokens": request.tokens_T.tolist(),
        "sampling": asdict(request.sampling),
        "resume": None if request.resume is None else sample_to(request.resume),
    }


def request_of(body: dict[str, Any], vocabulary: int) -> Request:
    """A request from JSON values. Raises Refusal; an empty prompt is the engine's to refuse."""
    fields = Fields(body)
    key, tokens, resume = key_of(fields.take("key")), fields.take("tokens"), fields.take("resume")
    sampling = fields.object("sampling")
    fields.done()
    given = parse(Sampling, sampling, "sampling")
    generated = replace(given, top_k=min(given.top_k, vocabulary))
    tokens_T = tokens_of(tokens, "tokens", vocabulary) if tokens != [] else np.zeros(0, np.int32)
    return Request(key, tokens_T, generated, None if resume is None else sample_of(resume, vocabulary))


def key_of(value: Any) -> SampleKey:
    """A key from ``[source, epoch, ordinal, sample]``."""
    right = isinstance(value, list) and len(value) == 4 and isinstance(value[0], str)
    if not right or not all(isinstance(part, int) for part in value[1:]):
        raise Refusal(400, "key: give [source, epoch, ordinal, sample]", param="key")
    source, epoch, ordinal, sample = value
    return SampleKey(PromptKey(source, epoch, ordinal), sample)


def sample_to(sample: Sample) -> dict[str, Any]:
    """A sample's own columns as JSON values."""
    return {
        "key": [*sample.key.prompt, sample.key.sample],
        "tokens": sample.tokens_T.tolist(),
        "action": sample.action_T.astype(int).tolist(),
        "logp": sample.logp_T.tolist(),
        "version": sample.version_T.tolist(),
        "finish": sample.finish,
        "text": sample.text,
        "marked": sample.marked,
    }


def sample_of(body: Mapping[str, Any], vocabulary: int | None = None) -> Sample:
    """A sample from JSON values; its tokens are checked if the vocabulary is given. Raises Refusal."""
    try:
        tokens_T: IntArray = (
            np.asarray(body["tokens"], np.int32) if vocabulary is None else tokens_of(body["tokens"], "tokens", vocabulary)
        )
        action_T = np.asarray(body["action"], np.bool_)
        logp_T, version_T = np.asarray(body["logp"], np.float32), np.asarray(body["version"], np.int32)
        finish, text, marked = body["finish"], str(body["text"]), body.get("marked")
        key = key_of(body["key"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise Refusal(400, f"a sample is malformed: {error!r}", param="resume") from error
    if finish not in FINISHES or any(column.shape != tokens_T.shape for column in (action_T, logp_T, version_T)):
        raise Refusal(400, "a sample is malformed: its columns do not fit together", param="resume")
    return Sample(key, {"tokens_T": tokens_T}, action_T, logp_T, version_T, finish, text, marked=marked)
