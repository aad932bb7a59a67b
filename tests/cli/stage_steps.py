"""A stage of a run by itself, step by step in this process."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from contextlib import aclosing

import torch
from processes import TIMED

from penstock.models.language_model import LanguageModel
from penstock.runtime.local import alongside
from penstock.runtime.stages import StageRuntime


def walk(ready: StageRuntime, start: int = 0, stop: int = 100) -> list[dict[str, float]]:
    """Metrics of the steps from one to another; the stage is left after them."""
    found: list[dict[str, float]] = []

    async def main() -> None:
        try:
            async with alongside(*ready.background()), aclosing(ready.steps(start)) as steps:
                async for step in steps:
                    found.append({k: v for k, v in step.metrics.items() if not k.startswith(TIMED)})
                    ready.acknowledge()
                    if step.index + 1 >= stop:
                        return
        finally:
            await ready.close()

    asyncio.run(main())
    return found


def weights(model: LanguageModel) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def assert_resumed_exactly(make: Callable[[], StageRuntime], at: int) -> tuple[StageRuntime, StageRuntime]:
    """A stage walked as a whole, and one that went on from the state of another after some steps; they did the same."""
    whole, first, second = (make() for _ in range(3))
    expected = walk(whole)
    assert walk(first, 0, at) == expected[:at]
    for name, holder in first.holders.items():
        second.holders[name].load_state(copy.deepcopy(holder.state()))
    assert walk(second, at) == expected[at:]
    assert all(map(torch.equal, weights(second.model).values(), weights(whole.model).values()))
    return whole, second
