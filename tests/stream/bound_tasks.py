"""The same world as in ``bound_model`` around the waiting stream: every role is a task that is cancelled at random moments."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Coroutine
from typing import Any

from bound_model import History, length, scored_by
from flow_examples import drawn

from penstock.core.types import Version
from penstock.stream.columns import changes
from penstock.stream.rules import DEATHS, Rules, Ticket
from penstock.stream.stream import Stream

Role = Callable[[str], Coroutine[Any, Any, None]]


class Newest:
    """A version that only grows, and that can be waited for."""

    def __init__(self, version: Version) -> None:
        self.version = version
        self._changed = asyncio.Condition()

    async def set(self, version: Version) -> None:
        async with self._changed:
            self.version = max(self.version, version)
            self._changed.notify_all()

    async def reach(self, version: Version) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self.version >= version)


class Tasks:
    """Run with :meth:`run`; ``history`` is what the surviving weights were trained on."""

    def __init__(self, rules: Rules, every: int, batches: int, chance: random.Random) -> None:
        self.every, self.batches, self.chance = every, batches, chance
        self.stream, self.history = Stream(rules, deadline=20.0), History(rules)
        self.board = Newest(0)
        self.saved = (self.stream.state(), 0)
        self.deaths_left, self.learner_deaths_left = DEATHS - 1, 5

    async def pause(self, most: int = 6) -> None:
        for _ in range(self.chance.randrange(most)):
            await asyncio.sleep(0)

    async def run(self, generators: int) -> None:
        """Until ``batches`` are trained."""
        others = [self.reborn(self.generate, f"generator {number}") for number in range(generators)]
        for stage in self.stream.rules.stages:
            others += [
                self.reborn(lambda name, stage=stage.name: self.write(stage, name), f"{stage.name} {n}") for n in range(2)
            ]
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            tasks = [group.create_task(other) for other in others]
            await self.learn_on()
            for task in tasks:
                task.cancel()

    # ---- deaths

    async def reborn(self, role: Role, name: str) -> None:
        """Run a role again and again, each time under a new name; each life but the last ends at a random moment."""
        for life in itertools.count():
            task = asyncio.create_task(role(f"{name}.{life}"))
            try:
                await self.pause(150)
                if task.done() or not self.deaths_left:
                    return await task
                self.deaths_left -= 1
            finally:
                task.cancel()
            await asyncio.wait([task])
            await self.stream.leave(f"{name}.{life}")

    async def learn_on(self) -> None:
        """A learner that dies and goes on from its last checkpoint."""
        while True:
            task = asyncio.create_task(self.learn())
            if self.learner_deaths_left:
                await self.pause(120)
                task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                return task.result()
            self.learner_deaths_left -= 1
            state, version = self.saved
            del self.history.leases[version:]
            await self.stream.restore(state)

    # ---- roles

    async def generate(self, name: str) -> None:
        held, running = Newest(-1), dict[Ticket, asyncio.Task[None]]()

        async def follow() -> None:
            while True:
                await self.board.reach(held.version + 1)
                await self.pause(20)
                await held.set(self.board.version)

        async def draw(ticket: Ticket) -> None:
            await held.reach(ticket.floor)
            versions = []
            for _ in range(length(ticket.ordinal)):
                await self.pause()
                versions.append(held.version)
            wanted = await self.stream.put(ticket, drawn(ticket.ordinal, versions))
            assert wanted or self.stream.rules.on_stale == "drop"

        async def hear() -> None:
            while True:
                for ticket in await self.stream.withdrawn(name):
                    if ticket in running:
                        running[ticket].cancel()

        async with asyncio.TaskGroup() as group:
            group.create_task(follow())
            group.create_task(hear())
            while True:
                for ticket in await self.stream.admit(name, 1 + self.chance.randrange(3)):
                    running[ticket] = group.create_task(draw(ticket))

    async def write(self, stage: str, name: str) -> None:
        while True:
            for ticket, group in await self.stream.take(stage, name, 1 + self.chance.randrange(3)):
                await self.pause()
                await self.stream.write(ticket, stage, changes(group, scored_by(stage, group)))

    async def learn(self) -> None:
        while self.history.version < self.batches:
            lease = await self.stream.lease(self.history.version)
            self.history.check(lease)
            await self.pause()
            self.stream.trained(lease)
            self.history.add(lease)
            await self.pause()
            await self.board.set(self.history.version)
            await self.pause()
            if self.history.version % self.every == 0:
                self.saved = self.stream.state(), self.history.version
                await self.pause()
                self.stream.acknowledge()
            await self.pause()
            await self.stream.release(lease)
