"""Engines for decoders and encoder-decoders, and what befalls samples while they are drawn."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np

import tiny_models
import tiny_t5
from engine_examples import resumed, started
from penstock.core.types import Request, Sample, SampleKey, WeightUpdate
from penstock.engine.encoder_decoder import EncoderDecoderGenerator, embedded_generator
from tiny_models import request

EITHER = ("qwen2", "t5")
"""An architecture of each kind."""
EVERY = (*tiny_models.ARCHITECTURES, *tiny_t5.ARCHITECTURES)
LONG = [request(np.arange(20, 26), sample=g, max_new_tokens=40) for g in range(3)] + [
    request(np.arange(40, 43), 1, 3, max_new_tokens=40)
]


def engine(model: Any, **options: Any) -> Any:
    """The engine for a model. Encoder-decoders run their steps as they are: recording one costs more than short runs."""
    generator = embedded_generator(model, **options)
    if isinstance(generator, EncoderDecoderGenerator):
        generator.decode._traceable = False
    return generator


def updated(generator: Any, requests: Sequence[Request], tokens: int, update: WeightUpdate) -> list[Sample]:
    """Samples of requests during which an update came, once ``tokens`` tokens in all had been drawn."""

    async def update_midway() -> list[Sample]:
        tasks = await started(generator, requests, tokens)
        assert await generator.load(update) == update.version
        return list(await asyncio.gather(*tasks))

    return asyncio.run(update_midway())


def aborted(
    generator: Any, requests: Sequence[Request], tokens: int, keys: Sequence[SampleKey]
) -> tuple[list[Sample], list[Sample]]:
    """What aborting keys gave, once ``tokens`` tokens in all had been drawn, and the samples."""

    async def abort_midway() -> tuple[list[Sample], list[Sample]]:
        tasks = await started(generator, requests, tokens)
        given = await generator.abort(keys)
        return list(given), list(await asyncio.gather(*tasks))

    return asyncio.run(abort_midway())


def finished(generator: Any, requests: Sequence[Request], samples: Sequence[Sample]) -> list[Sample]:
    """The samples of requests that go on where these ended."""
    return asyncio.run(resumed(generator, requests, samples))
