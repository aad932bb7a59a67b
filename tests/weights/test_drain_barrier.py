"""``kv="drain"``: groups and weight updates are kept apart."""

from __future__ import annotations

import asyncio

import pytest

from penstock.algos import GRPO
from penstock.config.run import DataSpec, ModelSpec, Online, RewardSpec, Run
from penstock.core.errors import SpecError
from penstock.weights.follow import DrainBarrier


def played(*steps: tuple[str, str]) -> list[str]:
    """What happens when groups and updates begin and end in the given order, by (what, "begin" or "end")."""
    told: list[str] = []

    async def one(name: str, border: DrainBarrier, end: asyncio.Event) -> None:
        async with border.update() if name.startswith("update") else border.group():
            told.append(f"{name} begins")
            await end.wait()
            told.append(f"{name} ends")

    async def play() -> None:
        border, ends, tasks = DrainBarrier(), {name: asyncio.Event() for name, _ in steps}, []
        for name, what in steps:
            if what == "begin":
                tasks.append(asyncio.create_task(one(name, border, ends[name])))
            else:
                ends[name].set()
            for _ in range(10):
                await asyncio.sleep(0)
        async with asyncio.timeout(5.0):
            await asyncio.gather(*tasks)

    asyncio.run(play())
    return told


def test_groups_overlap() -> None:
    told = played(("a", "begin"), ("b", "begin"), ("a", "end"), ("b", "end"))
    assert told == ["a begins", "b begins", "a ends", "b ends"]


def test_an_update_waits_for_every_group_in_flight_and_the_next_group_for_the_update() -> None:
    told = played(
        ("a", "begin"), ("b", "begin"), ("update", "begin"), ("c", "begin"),
        ("a", "end"), ("b", "end"), ("update", "end"), ("c", "end"),
    )  # fmt: skip
    assert told == ["a begins", "b begins", "a ends", "b ends", "update begins", "update ends", "c begins", "c ends"]


def test_a_group_that_is_dropped_holds_no_update_off() -> None:
    async def play() -> bool:
        border = DrainBarrier()

        async def group() -> None:
            async with border.group():
                await asyncio.Event().wait()

        dropped = asyncio.create_task(group())
        await asyncio.sleep(0)
        dropped.cancel()
        async with asyncio.timeout(5.0), border.update():
            return dropped.cancelled()

    assert asyncio.run(play())


def test_one_process_refuses_to_drain() -> None:
    stage = Online(
        name="grpo",
        model=ModelSpec(),
        data=DataSpec(source="gym:count_bits", size=8),
        rewards=(RewardSpec(function="exact_match"),),
        algorithm=GRPO(),
        max_lag=1,
        kv="drain",
    )
    with pytest.raises(SpecError, match='set runtime="procs"'):
        Run(name="drained", stages=(stage,))
    assert Run(name="drained", stages=(stage,), runtime="procs").stages == (stage,)
