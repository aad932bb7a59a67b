"""A real vLLM that is sent low-rank adapters alone: the matrices of its model stay as they were."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tiny_models
from penstock.config.learner import LearnerSpec, LoRA
from penstock.core.errors import WeightError
from penstock.core.types import WeightUpdate
from penstock.engine.generator import EmbeddedGenerator
from penstock.models.files import save_model
from penstock.models.restrict import restrict
from penstock.weights.snapshot import Layout
from tiny_models import request
from vllm_engine import WIDE

pytestmark = pytest.mark.vllm
LONG = 200
"""Tokens of an answer in which an update has time to come."""
CLOSE = 1e-4
"""Largest gap in nats to the learner's arithmetic, in float32."""


def adapted(text: Any, seed: int) -> Any:
    """One model for all seeds, with adapters of each seed's own, which do not start at zero here."""
    model = tiny_models.build("qwen2", text, **WIDE)
    restrict(model, LearnerSpec(lora=LoRA(rank=4, alpha=8.0)))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _, tensor in model.adapter_weights():
            tensor.copy_(torch.randn(tensor.shape, generator=generator) * 0.2)
    return model


@pytest.fixture
def using(text: Any, tmp_path: Path) -> Callable[..., Any]:
    """``using(scenario)``: what a scenario over vLLM comes to, which has the adapters of seed 0 as version 0."""
    pytest.importorskip("vllm", reason="vLLM is not installed here; make test-vllm has it")

    def run(scenario: Any) -> Any:
        async def all_of_it() -> Any:
            from penstock.config.engines import VLLM
            from penstock.runtime.engines import EngineStart, opened

            start = adapted(text, 0)
            save_model(start, tmp_path / "model", adapted=False)
            spec = VLLM(cache_bytes=1 << 27)
            folder = tmp_path / "model"
            async with opened(spec, EngineStart(folder, None, 4, tmp_path / "shared", adapters=True)) as found:
                await found.engine.load(WeightUpdate(0, adapters(start)))
                return await asyncio.wait_for(scenario(found.engine), 300)

        return asyncio.run(all_of_it())

    return run


def adapters(model: Any) -> list[tuple[str, Any]]:
    return [(name, tensor.clone()) for name, tensor in model.adapter_weights()]


async def scored(model: Any, sample: Any) -> Any:
    return await EmbeddedGenerator(model).score(sample.tokens_T, prompt=int((~sample.action_T).sum()))


async def refused(generator: Any, update: WeightUpdate, because: str) -> None:
    with pytest.raises(WeightError, match=because):
        await generator.load(update)


def test_adapters_that_come_in_flight_are_the_learners(using: Any, text: Any) -> None:
    """One engine, one story: starting vLLM is what takes long."""
    first, second = adapted(text, 0), adapted(text, 1)
    asked = request(np.arange(20, 25), max_new_tokens=40)

    async def scenario(generator: Any) -> None:
        alone = await generator.generate(asked)
        np.testing.assert_allclose(alone.logp_T, await scored(first, alone), atol=CLOSE)
        ours = await EmbeddedGenerator(first).generate(asked)
        assert alone.tokens_T.tolist() == ours.tokens_T.tolist()

        # In the middle of an answer, read again by the new adapters.
        began = asyncio.Event()
        drawn: list[int] = []

        def seen(*_: Any) -> None:
            drawn.append(1)
            if len(drawn) >= 5:
                began.set()

        flying = asyncio.create_task(generator.generate(request(np.arange(20, 25), 1, max_new_tokens=LONG), seen))
        await asyncio.wait_for(began.wait(), 60)
        await generator.load(WeightUpdate(1, adapters(second), kv="recompute"))
        crossed = await flying
        versions = crossed.version_T
        action = crossed.action_T
        assert set(versions[action].tolist()) == {0, 1}, "the update came in the middle of the answer"
        assert (np.diff(versions[action]) >= 0).all()
        for version, model in enumerate((first, second)):
            mine = action & (versions == version)
            np.testing.assert_allclose(crossed.logp_T[mine], (await scored(model, crossed))[mine], atol=CLOSE)

        # A damaged update changes nothing.
        names = adapters(first)
        await refused(generator, WeightUpdate(2, names[1:]), "is missing")
        await refused(generator, WeightUpdate(2, [(names[0][0], names[0][1] * float("nan")), *names[1:]]), "not finite")
        await refused(generator, WeightUpdate(2, [(names[0][0], names[0][1][:, 1:]), *names[1:]]), "shape")
        await refused(generator, WeightUpdate(1, names), "not newer")
        again = await generator.generate(request(np.arange(20, 25), 2, max_new_tokens=10))
        assert set(again.version_T[again.action_T].tolist()) == {1}
        np.testing.assert_allclose(again.logp_T, await scored(second, again), atol=CLOSE)

    using(scenario)


def test_adapters_are_far_fewer_bytes_than_the_model(text: Any) -> None:
    model = adapted(text, 0)
    alone, whole = (Layout.of(weights).bytes for weights in (model.adapter_weights(), model.plain_weights()))
    assert alone < whole / 3
