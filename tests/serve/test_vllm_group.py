"""A real vLLM whose workers are members of the channel's process group: weights go from the learner to them directly."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tiny_models
from penstock.config.learner import LearnerSpec, LoRA
from penstock.core.errors import WeightError
from penstock.engine.generator import EmbeddedGenerator
from penstock.models.files import save_model
from penstock.models.restrict import restrict
from penstock.weights.folder import PREFIX
from penstock.weights.handover import Handover
from penstock.weights.image import Superseded, sums_of
from penstock.weights.process_group import ProcessGroupPublisher
from tiny_models import request
from vllm_engine import WIDE

pytestmark = pytest.mark.vllm
LONG = 200
"""Tokens of an answer in which an update has time to come."""
CLOSE = 1e-4
"""Largest gap in nats to the learner's arithmetic, in float32."""
NAME = "generator-0"


def whole(text: Any, seed: int) -> Any:
    """A model with matrices of a seed's own."""
    model = tiny_models.build("qwen2", text, **WIDE)
    tiny_models.randomise(model.network, seed=seed)
    return model


def adapted(text: Any, seed: int) -> Any:
    """One model for all seeds, with adapters of each seed's own, which do not start at zero here."""
    model = tiny_models.build("qwen2", text, **WIDE)
    restrict(model, LearnerSpec(lora=LoRA(rank=4, alpha=8.0)))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _, tensor in model.adapter_weights():
            tensor.copy_(torch.randn(tensor.shape, generator=generator) * 0.2)
    return model


class Learner:
    """Publishes weights by process group, and hands each manifest to who opens it."""

    def __init__(self, folder: Path, workers: int) -> None:
        self.now: list[tuple[str, Any]] = []
        self.manifests: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.failures: list[dict[str, Any]] = []
        self.publisher = ProcessGroupPublisher(
            lambda: self.now, folder, self.manifests.put, generators=workers, seconds=20.0,
            report=lambda what, **told: self.failures.append(told),
        )  # fmt: skip

    async def publish(self, version: int, weights: Any) -> dict[str, Any]:
        """The manifest of weights that are published."""
        self.now = [(name, tensor.detach().clone()) for name, tensor in weights]
        await self.publisher.publish(version)
        return await asyncio.wait_for(self.manifests.get(), 60)


@pytest.fixture
def using(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """``using(scenario, model, workers, adapters)``: what a scenario over (vLLM, learner, subscriber) comes to."""
    pytest.importorskip("vllm", reason="vLLM is not installed here; make test-vllm has it")

    def no_copy(*_: Any) -> Any:
        raise AssertionError("an image went through the generator's process")

    monkeypatch.setattr(Handover, "write", no_copy)

    def run(scenario: Any, model: Any, workers: int = 1, adapters: bool = False) -> Any:
        async def all_of_it() -> Any:
            from penstock.config.engines import VLLM
            from penstock.runtime.engines import Rounds, opened

            save_model(model, tmp_path / "model", adapted=not adapters)
            spec = VLLM(cache_bytes=1 << 27, tensor_parallel=workers)
            learner = Learner(tmp_path / f"{PREFIX}run", workers)
            ways: Mapping[str, Any] = {"shared": tmp_path / "shared", "rounds": Rounds(tmp_path / f"{PREFIX}run", NAME)}
            async with opened(spec, tmp_path / "model", None, slots=4, adapters=adapters, **ways) as found:
                try:
                    return await asyncio.wait_for(scenario(found.engine, learner, found.subscriber), 300)
                finally:
                    learner.publisher.close()

        return asyncio.run(all_of_it())

    return run


async def scored(model: Any, sample: Any) -> Any:
    return await EmbeddedGenerator(model).score(sample.tokens_T, prompt=int((~sample.action_T).sum()))


async def crossing(generator: Any, update: Any) -> Any:
    """A sample in the middle of which an update comes."""
    began = asyncio.Event()
    drawn: list[int] = []

    def seen(*_: Any) -> None:
        drawn.append(1)
        if len(drawn) >= 5:
            began.set()

    flying = asyncio.create_task(generator.generate(request(np.arange(20, 25), 1, max_new_tokens=LONG), seen))
    await asyncio.wait_for(began.wait(), 60)
    await generator.load(replace(update, kv="recompute"))
    return await flying


async def assert_exact(sample: Any, models: Mapping[int, Any]) -> None:
    """Every token's log-prob is that of the model of its version."""
    action, versions = sample.action_T, sample.version_T
    assert set(versions[action].tolist()) == set(models), "tokens of every version"
    assert (np.diff(versions[action]) >= 0).all()
    for version, model in models.items():
        mine = action & (versions == version)
        np.testing.assert_allclose(sample.logp_T[mine], (await scored(model, sample))[mine], atol=CLOSE)


async def story(
    generator: Any, learner: Learner, subscriber: Any, models: tuple[Any, Any], weights: Callable[..., Any]
) -> None:
    """Two versions, one in the middle of an answer; then updates that change nothing; then a third version."""
    first, second = models
    await generator.load(subscriber.open(await learner.publish(0, weights(first))))
    alone = await generator.generate(request(np.arange(20, 25), max_new_tokens=40))
    await assert_exact(alone, {0: first})
    crossed = await crossing(generator, subscriber.open(await learner.publish(1, weights(second))))
    await assert_exact(crossed, {0: first, 1: second})
    assert await generator.sums() == sums_of(lambda: learner.now)

    damaged = await learner.publish(2, weights(first))
    damaged["buckets"][0]["checksum"] = "0" * 16
    with pytest.raises(WeightError, match=r"refused by worker 0 of .*the checksum of bytes"):
        await generator.load(subscriber.open(damaged))
    broken = [(name, tensor * float("nan")) for name, tensor in weights(first)]
    with pytest.raises(WeightError, match="not finite"):
        await generator.load(subscriber.open(await learner.publish(3, broken)))
    other = await learner.publish(4, weights(first))
    other["tensors"][0]["shape"] = [1, *other["tensors"][0]["shape"]]
    with pytest.raises(WeightError, match="shape"):
        await generator.load(subscriber.open(other))
    late = await learner.publish(5, weights(first))
    newest = await learner.publish(6, weights(first))
    with pytest.raises(Superseded):
        await generator.load(subscriber.open(late))
    still = await generator.generate(request(np.arange(20, 25), 2, max_new_tokens=10))
    await assert_exact(still, {1: second})

    await generator.load(subscriber.open(newest))
    await assert_exact(await generator.generate(request(np.arange(20, 25), 3, max_new_tokens=10)), {6: first})
    assert [told["reason"] for told in learner.failures] == []


def names_of(learner: Learner) -> list[str]:
    assert learner.publisher._group is not None
    return learner.publisher._group.members


def test_matrices_go_from_the_learner_to_the_worker_and_log_probs_are_exact_across_the_switch(using: Any, text: Any) -> None:
    models = whole(text, 1), whole(text, 2)

    async def scenario(generator: Any, learner: Learner, subscriber: Any) -> list[str]:
        await story(generator, learner, subscriber, models, lambda model: model.policy_weights())
        return names_of(learner)

    assert using(scenario, models[0]) == ["generator-0/worker-0"]


def test_adapters_go_the_same_way(using: Any, text: Any) -> None:
    models = adapted(text, 1), adapted(text, 2)

    async def scenario(generator: Any, learner: Learner, subscriber: Any) -> list[str]:
        await story(generator, learner, subscriber, models, lambda model: model.adapter_weights())
        return names_of(learner)

    assert using(scenario, models[0], adapters=True) == ["generator-0/worker-0"]


def test_two_workers_of_one_generator_take_part_in_the_same_round(using: Any, text: Any) -> None:
    models = whole(text, 1), whole(text, 2)

    async def scenario(generator: Any, learner: Learner, subscriber: Any) -> list[str]:
        await story(generator, learner, subscriber, models, lambda model: model.policy_weights())
        return names_of(learner)

    assert using(scenario, models[0], workers=2) == ["generator-0/worker-0", "generator-0/worker-1"]
