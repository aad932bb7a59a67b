"""What a real vLLM does beyond the contract: many updates in flight, caches by version, damage on the last stretch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tiny_models
from penstock.core.errors import GenerationError, WeightError
from penstock.core.types import Request, WeightUpdate
from penstock.engine.generator import EmbeddedGenerator
from penstock.weights.snapshot import sums_of
from tiny_models import request
from vllm_engine import WIDE, vllm

pytestmark = pytest.mark.vllm

CLOSE = 1e-3
"""Largest gap in nats to the learner's arithmetic, in float32."""


@pytest.fixture
def model(text: Any) -> Any:
    return tiny_models.build("qwen2", text, **WIDE)


@pytest.fixture
def other(text: Any) -> Any:
    made = tiny_models.build("qwen2", text, **WIDE)
    tiny_models.randomise(made.network, seed=5)
    return made


@pytest.fixture
def using(model: Any) -> Callable[..., Any]:
    """``using(scenario)``: what a scenario over vLLM at version 0 comes to."""

    def run(scenario: Any) -> Any:
        async def opened() -> Any:
            async with vllm(model) as generator:
                return await asyncio.wait_for(scenario(generator), 300)

        return asyncio.run(opened())

    return run


def weights(model: Any) -> list[tuple[str, Any]]:
    return [(name, tensor.detach().clone()) for name, tensor in model.policy_weights()]


def wanted(count: int, **sampling: Any) -> list[Request]:
    return [request(np.arange(20, 23 + ordinal % 7), ordinal, **sampling) for ordinal in range(count)]


async def drawing(generator: Any, tokens: int) -> None:
    """Wait until so many tokens are drawn."""
    async with asyncio.timeout(60):
        while generator.stats().generated_tokens < tokens:
            await asyncio.sleep(0.001)


async def scored(model: Any, sample: Any) -> Any:
    return await EmbeddedGenerator(model).score(sample.tokens_T, prompt=int((~sample.action_T).sum()))


def test_samples_are_those_of_the_embedded_engine(using: Any, model: Any) -> None:
    asked = wanted(8, max_new_tokens=20, temperature=0.8, top_k=20, top_p=0.9)

    async def scenario(generator: Any) -> Any:
        embedded = EmbeddedGenerator(model)
        ours = await asyncio.gather(*(embedded.generate(one) for one in asked))
        return ours, await asyncio.gather(*(generator.generate(one) for one in asked))

    for ours, theirs in zip(*using(scenario), strict=True):
        assert theirs.tokens_T.tolist() == ours.tokens_T.tolist()
        assert (theirs.text, theirs.finish) == (ours.text, ours.finish)
        np.testing.assert_allclose(theirs.logp_T, ours.logp_T, atol=CLOSE)


def test_no_request_is_lost_over_sixty_updates_in_flight(using: Any, model: Any, other: Any) -> None:
    update_count, pair = 60, (weights(other), weights(model))

    async def scenario(generator: Any) -> Any:
        ended: list[Any] = []
        updating = True

        async def client(number: int) -> None:
            turn = 0
            while updating:
                one = request(np.arange(20, 24 + number), number * 1000 + turn, max_new_tokens=30)
                ended.append((one, await generator.generate(one)))
                turn += 1

        clients = [asyncio.create_task(client(number)) for number in range(6)]
        for version in range(1, update_count + 1):
            await generator.load(WeightUpdate(version, pair[version % 2]))
            await drawing(generator, version * 10)
        updating = False
        await asyncio.gather(*clients)
        return ended, generator.stats()

    ended, stats = using(scenario)
    seen: set[int] = set()
    crossed = 0
    for asked, sample in ended:
        versions = sample.version_T[sample.action_T]
        assert sample.finish in ("length", "stop")
        assert sample.key == asked.key
        assert (np.diff(versions) >= 0).all()
        seen |= set(versions.tolist())
        crossed += len(set(versions.tolist())) > 1
    assert stats.version == update_count
    assert (stats.running, stats.waiting) == (0, 0)
    assert len(seen) >= 50
    assert crossed >= 10, "updates came in the middle of answers"


def test_a_new_request_reads_no_prefix_of_older_weights(using: Any, other: Any) -> None:
    """The prompt fills whole blocks of vLLM's cache, which the first request leaves behind."""
    prompt = tiny_models.tokens(np.random.default_rng(1), 100)

    async def scenario(generator: Any) -> Any:
        await generator.generate(request(prompt, max_new_tokens=4))
        await generator.load(WeightUpdate(1, weights(other)))
        return await generator.generate(request(prompt, 1, max_new_tokens=20))

    sample = using(scenario)
    np.testing.assert_allclose(sample.logp_T, asyncio.run(scored(other, sample)), atol=CLOSE)


@pytest.mark.parametrize(("kv", "rereads"), [("recompute", True), ("keep", False)])
def test_recompute_reads_the_answer_again_and_keep_does_not(using: Any, other: Any, kv: str, rereads: bool) -> None:
    async def scenario(generator: Any) -> Any:
        task = asyncio.create_task(generator.generate(request(np.arange(20, 25), max_new_tokens=200)))
        await drawing(generator, 15)
        await generator.load(WeightUpdate(1, weights(other), kv))
        return await task

    sample = using(scenario)
    new = sample.version_T == 1
    assert new.sum() > 10
    gap = np.abs(sample.logp_T - asyncio.run(scored(other, sample)))[new]
    assert bool(gap.max() < CLOSE) is rereads


def test_abort_on_update_gives_samples_that_go_on(using: Any, other: Any) -> None:
    async def scenario(generator: Any) -> Any:
        one = request(np.arange(20, 25), max_new_tokens=200)
        task = asyncio.create_task(generator.generate(one))
        await drawing(generator, 10)
        await generator.load(WeightUpdate(1, weights(other), "abort"))
        partial = await task
        return partial, await generator.generate(Request(one.key, one.tokens_T, one.sampling, resume=partial))

    partial, whole = using(scenario)
    assert partial.finish == "abort"
    assert 0 < partial.action_T.sum() < 200
    assert whole.tokens_T[: len(partial.tokens_T)].tolist() == partial.tokens_T.tolist()
    assert set(whole.version_T[whole.action_T].tolist()) == {0, 1}


def test_an_image_that_is_damaged_on_the_last_stretch_is_refused(using: Any, other: Any, monkeypatch: Any) -> None:
    from penstock.weights.worker_loader import WorkerLoader

    inner = WorkerLoader.write

    def spoil(loader: Any, order: Any, tensors: Any) -> Any:
        manifest = inner(loader, order, tensors)
        with open(loader.path, "r+b") as file:
            file.seek(1000)
            file.write(b"\x99" * 8)
        return manifest

    tokens_T = np.arange(20, 30, dtype=np.int32)

    async def scenario(generator: Any) -> Any:
        before = await generator.score(tokens_T)
        with monkeypatch.context() as patch:
            patch.setattr(WorkerLoader, "write", spoil)
            with pytest.raises(WeightError, match="checksum"):
                await generator.load(WeightUpdate(1, weights(other)))
        after, version = await generator.score(tokens_T), generator.stats().version
        await generator.load(WeightUpdate(1, weights(other)))
        return before, after, version, generator.stats().version

    before, after, refused, taken = using(scenario)
    assert after.tolist() == before.tolist()
    assert (refused, taken) == (0, 1)


def test_checksums_are_those_of_the_learner(using: Any, other: Any) -> None:
    async def scenario(generator: Any) -> Any:
        await generator.load(WeightUpdate(1, weights(other)))
        return await generator.sums()

    assert using(scenario) == sums_of(lambda: weights(other))


def test_a_cancelled_request_leaves_the_engine(using: Any) -> None:
    async def scenario(generator: Any) -> Any:
        task = asyncio.create_task(generator.generate(request(np.arange(20, 25), max_new_tokens=90)))
        await drawing(generator, 5)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        async with asyncio.timeout(20):
            while generator.stats().running:
                await asyncio.sleep(0.01)
        return generator.shared.engine.engine.output_processor.get_num_unfinished_requests()

    assert using(scenario) == 0


def test_q_heads_are_refused(using: Any) -> None:
    async def scenario(generator: Any) -> None:
        with pytest.raises(GenerationError, match="Q heads"):
            await generator.generate(request(np.arange(20, 25), beta=1.0))

    assert using(scenario) is None
