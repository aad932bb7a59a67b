"""The same world as in ``bound_model`` around the waiting stream: every role is a task that is cancelled at random moments."""

from __future__ import annotations

import asyncio
import functools
import itertools
import random
from collections.abc import Callable, Coroutine
from typing import Any

from bound_model import History, length, scored_by
from stream_examples import generated

from penstock.core.types import Version
from penstock.stream.enrichment import changes
from penstock.stream.entry import Ticket
from penstock.stream.gate import MAX_FAILED_OWNERS
from penstock.stream.rules import Rules
from penstock.stream.stream import LearnerClient, Stream, Worker

Role = Callable[[Worker], Coroutine[Any, Any, None]]


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
        self.learner = LearnerClient(rules, self.stream)
        self.published = Newest(0)
        self.saved = (self.learner.ledger, 0)
        self.deaths_left, self.learner_deaths_left = MAX_FAILED_OWNERS - 1, 5

    async def pause(self, most: int = 6) -> None:
        for _ in range(self.chance.randrange(most)):
            await asyncio.sleep(0)

    async def run(self, generators: int) -> None:
        """Until ``batches`` are trained."""
        others = [self.reborn(self.generate, f"generator {number}") for number in range(generators)]
        for step in self.stream.gate.rules.enrichment:
            write = functools.partial(self.write, step.name)
            others += [self.reborn(write, f"{step.name} {number}") for number in range(2)]
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            tasks = [group.create_task(other) for other in others]
            await self.learn_on()
            for task in tasks:
                task.cancel()

    # ---- deaths

    async def reborn(self, role: Role, name: str) -> None:
        """Run a role again and again, each time under a new name; each life but the last ends at a random moment."""
        for life in itertools.count():
            worker = Worker(self.stream, f"{name}.{life}")
            task = asyncio.create_task(role(worker))
            try:
                await self.pause(150)
                if task.done() or not self.deaths_left:
                    return await task
                self.deaths_left -= 1
            finally:
                task.cancel()
            await asyncio.wait([task])
            await worker.leave()

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
            kept, version = self.saved
            del self.history.leases[version:]
            await self.stream.now(lambda kept=kept: self.stream.gate.restore(kept))
            self.learner = LearnerClient(self.stream.gate.rules, self.stream)
            self.learner.ledger = kept

    # ---- roles

    async def generate(self, worker: Worker) -> None:
        held, running = Newest(-1), dict[Ticket, asyncio.Task[None]]()

        async def follow() -> None:
            while True:
                await self.published.reach(held.version + 1)
                await self.pause(20)
                await held.set(self.published.version)

        async def generate(ticket: Ticket) -> None:
            await held.reach(ticket.min_version)
            versions = []
            for _ in range(length(ticket.ordinal)):
                await self.pause()
                versions.append(held.version)
            wanted = await worker.put(ticket, generated(ticket.ordinal, versions))
            assert wanted or self.stream.gate.rules.on_stale == "drop"

        async def hear() -> None:
            while True:
                for ticket in await worker.revoked():
                    if ticket in running:
                        running[ticket].cancel()

        async with asyncio.TaskGroup() as group:
            group.create_task(follow())
            group.create_task(hear())
            while True:
                for ticket in await worker.admit(1 + self.chance.randrange(3)):
                    running[ticket] = group.create_task(generate(ticket))

    async def write(self, step: str, worker: Worker) -> None:
        while True:
            for ticket, group in await worker.take(step, 1 + self.chance.randrange(3)):
                await self.pause()
                await worker.write(ticket, step, changes(group, scored_by(step, group)))

    async def learn(self) -> None:
        while self.history.version < self.batches:
            lease = await self.learner.lease(self.history.version)
            self.history.check(lease)
            await self.pause()
            self.learner.trained(lease)
            self.history.add(lease)
            await self.pause()
            await self.published.set(self.history.version)
            await self.pause()
            if self.history.version % self.every == 0:
                self.saved = self.learner.ledger, self.history.version
                await self.pause()
                self.learner.acknowledge()
            await self.pause()
            await self.learner.release(lease)
