"""vLLM reads the media of a prompt as the embedded engine does, also after the tower's weights have changed."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seeing
import tiny_models
from penstock.core.types import WeightUpdate
from penstock.engine.encoder_decoder import embedded_generator

pytestmark = pytest.mark.vllm

CLOSE = 1e-3
"""Largest gap in nats to the learner's arithmetic, in float32."""


def over_vllm(model: Any, scenario: Any) -> Any:
    """What a scenario comes to over a vLLM of its own with a model of media, whose store it shares."""
    pytest.importorskip("vllm", reason="vLLM is not installed here; make test-vllm has it")
    from penstock.config.engines import VLLM
    from penstock.models.files import save_model
    from penstock.runtime.engines import EngineStart, opened

    async def run() -> Any:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            save_model(model, folder / "model")
            start = EngineStart(folder / "model", None, 4, folder / "shared", media=seeing.media_of(model))
            async with opened(VLLM(cache_bytes=1 << 27), start) as found:
                found.engine.text.store = model.text.store
                await found.engine.load(WeightUpdate(0, list(model.policy_weights())))
                return await asyncio.wait_for(scenario(found.engine), 300)

    return asyncio.run(run())


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "qwen2_vl", "qwen3_vl"])
def test_samples_that_show_media_are_those_of_the_embedded_engine(kind: str) -> None:
    model = seeing.of_kind(kind, head=32)  # vLLM's attention on a CPU has no narrower ones
    media = [seeing.picture(size) for size in seeing.SIZES] + ([] if kind == "qwen3_vl" else [seeing.film(4), seeing.film(3)])
    marks = ["<image>" if isinstance(medium, np.ndarray) else "<video>" for medium in media]
    blobs = seeing.shown(model, *media)
    texts = [(f"what is {mark}?", (at,)) for at, mark in enumerate(marks)]
    texts += [(f"{marks[0]} then {marks[-1]}", (0, len(marks) - 1)), (marks[1] * 2, (1, 1)), ("nothing to see", ())]
    wanted = [
        seeing.request(model, text, [blobs[place] for place in places], at, max_new_tokens=6, temperature=0.8)
        for at, (text, places) in enumerate(texts)
    ]
    tiny_models.randomise(model.network, seed=3)

    async def scenario(generator: Any) -> Any:
        async def both() -> Any:
            embedded = embedded_generator(model)
            ours = await asyncio.gather(*(embedded.generate(one) for one in wanted))
            return ours, await asyncio.gather(*(generator.generate(one) for one in wanted))

        first = await both()
        tiny_models.randomise(model.network, seed=4)
        model.forget()
        await generator.load(WeightUpdate(1, list(model.policy_weights())))
        return first, await both()

    for ours, theirs in [pair for both in over_vllm(model, scenario) for pair in zip(*both, strict=True)]:
        assert {name: column.tolist() for name, column in theirs.columns.items()} == {
            name: column.tolist() for name, column in ours.columns.items()
        }
        np.testing.assert_allclose(theirs.logp_T, ours.logp_T, atol=CLOSE)
