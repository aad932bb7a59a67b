"""One real vLLM for all tests of a session, because it takes half a minute to start: each test finds it as if it were new.

It runs in an event loop of its own thread, so that it outlives the loops of the tests.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from penstock.core.types import WeightUpdate
from penstock.models.language_model import LanguageModel

WIDE = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1}
"""Changes to a tiny model's shape: vLLM's attention on a CPU has no heads narrower than 32."""
SLOTS = 4


class Shared:
    """A running vLLM, whose verbs can be called from any event loop."""

    def __init__(self, model: LanguageModel) -> None:
        self.loop = asyncio.new_event_loop()
        self.stack = AsyncExitStack()
        threading.Thread(target=self.loop.run_forever, name="vllm", daemon=True).start()
        self.engine = asyncio.run_coroutine_threadsafe(self._open(model), self.loop).result(timeout=280)

    async def _open(self, model: LanguageModel) -> Any:
        from penstock.config.engines import VLLM
        from penstock.models.files import save_model
        from penstock.runtime.engines import EngineStart, opened

        folder = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        save_model(model, folder / "model")
        spec = VLLM(cache_bytes=1 << 27)
        found = await self.stack.enter_async_context(
            opened(spec, EngineStart(folder / "model", None, SLOTS, folder / "shared"))
        )
        return found.engine

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self.stack.aclose(), self.loop).result(timeout=60)

    async def call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self.loop))

    async def renew(self, model: LanguageModel) -> None:
        """As if it had just been opened, with these weights at version 0."""
        from penstock.serve.meter import Meter

        assert not self.engine._flights, "the test before has left requests behind"
        await self.engine.engine.reset_prefix_cache()
        self.engine.learner_epoch, self.engine.version = -1, -1
        await self.engine.load(WeightUpdate(0, list(model.policy_weights())))
        self.engine.meter = Meter()


class Bridge:
    """The engine's verbs, called in the engine's loop."""

    def __init__(self, shared: Shared) -> None:
        self.shared, self.engine = shared, shared.engine

    async def generate(self, request: Any, on_token: Any = None) -> Any:
        return await self.shared.call(self.engine.generate(request, on_token))

    async def score(self, tokens_T: Any, temperature: float = 1.0, prompt: int | None = None) -> Any:
        return await self.shared.call(self.engine.score(tokens_T, temperature, prompt))

    async def load(self, update: WeightUpdate) -> Any:
        return await self.shared.call(self.engine.load(update))

    async def abort(self, keys: Any) -> Any:
        return await self.shared.call(self.engine.abort(keys))

    async def sums(self) -> Any:
        return await self.shared.call(self.engine.sums())

    def stats(self) -> Any:
        return self.engine.stats()


_shared = cache(Shared)
_first: list[LanguageModel] = []


def end() -> None:
    """End the engine, if there is one; called when the session ends."""
    if _first:
        _shared(_first[0]).close()


@asynccontextmanager
async def vllm(model: LanguageModel) -> AsyncIterator[Bridge]:
    """vLLM over a model of the shape :data:`WIDE`; skips where it is not installed."""
    pytest.importorskip("vllm", reason="vLLM is not installed here; make test-vllm has it")
    if not _first:
        _first.append(model)
    shared = await asyncio.to_thread(_shared, _first[0])
    await shared.call(shared.renew(model))
    yield Bridge(shared)
