"""The bounded, leased, versioned queue between rollout and learner; owner of the gate.

With batch size ``B`` and ``max_lag = k`` there are ``(k + 1) · B`` slots. A slot is taken when a group is *started* and
given back only after the weights trained on its batch have been *published*, so no sample is born staler than the bound.
The rules are :mod:`penstock.stream.gate`'s; here is the waiting: every wait has a deadline and names whom it waits for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from penstock.core.contracts import State
from penstock.core.errors import StreamError
from penstock.core.types import Group, Version
from penstock.stream.enrichment import Change
from penstock.stream.entry import Ticket
from penstock.stream.gate import UNLIMITED, Gate, Ledger
from penstock.stream.leases import Lease
from penstock.stream.rules import Rules, StreamStats
from penstock.stream.verbs import verb

Result = TypeVar("Result")


class Clock(Protocol):
    """Seconds since an arbitrary start, and waiting with a deadline."""

    def now(self) -> float: ...

    async def wait(self, what: Awaitable[Result], seconds: float) -> Result:
        """Wait for ``what`` for at most ``seconds``; raises TimeoutError."""
        ...


class WallClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        return time.monotonic()

    async def wait(self, what: Awaitable[Result], seconds: float) -> Result:
        async with asyncio.timeout(seconds):  # asyncio.wait_for of Python 3.11 swallows a cancel that comes with the result
            return await what


DEADLINE = 3600.0
"""Seconds that a wait for work may last while there is no sign of any."""

Found = TypeVar("Found")


class Stream:
    """A gate that can be waited at. ``kept`` is a checkpoint's ledger.

    A wait fails after ``deadline`` seconds in which there was no sign of work: no group came, and ``work``, a count that grows
    while others work (of generated tokens), stood still. So long episodes need no longer deadline.
    """

    def __init__(
        self,
        rules: Rules,
        deadline: float = DEADLINE,
        clock: Clock | None = None,
        kept: Mapping[str, Any] | None = None,
        work: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.gate = Gate(rules, kept)
        self.deadline, self.work = deadline, work
        self.clock = clock or WallClock()
        self._changed = asyncio.Condition()

    @property
    def stats(self) -> StreamStats:
        return self.gate.stats

    async def now(self, change: Callable[[], Found]) -> Found:
        """Carry out a verb of the gate that may let others go on."""
        async with self._changed:
            found = change()
            self._changed.notify_all()
        return found

    async def once(self, ready: Callable[[], bool], work: Callable[[], Found], what: str, source: str) -> Found:
        """Carry out ``work`` as soon as ``ready()``.

        Raises:
            StreamError: the deadline has passed; it names what did not come, and from whom.
        """
        async with self._changed:
            if not await self._comes(ready):
                raise StreamError(f"waited {self.deadline:.0f} s for {what} from {source}; {self.gate.describe()}")
            return work()

    async def some(self, ready: Callable[[], bool], work: Callable[[], list[Found]]) -> list[Found]:
        """What ``work`` gives as soon as it is ``ready()``; nothing after the deadline, so that the caller asks again."""
        async with self._changed:
            return work() if await self._comes(ready) else []

    async def _comes(self, ready: Callable[[], bool]) -> bool:
        """Wait until ``ready()``, as long as there are signs of work. The caller holds the lock."""
        if ready():
            return True
        before, now = (-1.0, -1), self._signs()
        while now != before:
            try:
                await self.clock.wait(self._changed.wait_for(ready), self.deadline)
                return True
            except TimeoutError:
                before, now = now, self._signs()
        return False

    def _signs(self) -> tuple[float, int]:
        return self.work(), self.stats.delivered

    async def lease(self, version: Version) -> Lease:
        """The next batch for weights of ``version``.

        Waits for its groups; unblocked by deliveries. Raises StreamError after the deadline and where the gate does.
        """
        started, found = self.clock.now(), list[Lease]()

        def complete() -> bool:
            before = self.stats.dropped
            lease = self.gate.lease(version)
            found.extend([lease] if lease is not None else [])
            if self.stats.dropped > before or lease is not None:  # stale groups wait to be generated, and slots may be open
                self._changed.notify_all()
            return lease is not None

        lease = await self.once(complete, found.pop, f"{self.gate.rules.batch} groups", "the rollout")
        self.stats.waited_for_groups += self.clock.now() - started
        return lease

    async def release(self, number: int, saved: Version = 0) -> None:
        """The weights trained on a lease are published; ``saved``: the version of the newest checkpoint."""
        await self.now(lambda: self.gate.release(number, saved))


class Worker:
    """What a role asks of a stream that generates groups or writes columns. ``owner`` is its name there.

    A worker for which there is nothing to do hears so when the deadline has passed, and asks again.
    """

    def __init__(self, stream: Stream, owner: str) -> None:
        self.stream, self.owner = stream, owner

    @verb(waits=True)
    async def admit(self, most: int = 1, max_in_flight: int = UNLIMITED) -> list[Ticket]:
        """Take up to ``most`` slots, at least one; gives the tickets of the prompts to start. The worker generates no more than
        ``max_in_flight`` groups at a time, counted when it is given more: a request may wait while its groups end.

        Waits while all slots are taken; unblocked by the release of a lease. Raises StreamError after the deadline.
        """
        stream, started = self.stream, self.stream.clock.now()
        tickets = await stream.once(
            lambda: stream.gate.may_admit(self.owner, max_in_flight),
            lambda: stream.gate.admit(self.owner, most, max_in_flight),
            "a free slot",
            "the learner to publish new weights",
        )
        stream.stats.waited_for_slots += stream.clock.now() - started
        return tickets

    @verb()
    async def put(self, ticket: Ticket, group: Group) -> bool:
        """Deliver the group of a ticket; False if it is not wanted any more. Never waits: its slot is its place."""
        return await self.stream.now(lambda: self.stream.gate.put(self.owner, ticket, group))

    @verb(waits=True)
    async def revoked(self) -> list[Ticket]:
        """Tickets of this worker that are worth nothing any more, as soon as there are some; none after the deadline."""
        revoked = self.stream.gate.revoked
        return await self.stream.some(lambda: bool(revoked.get(self.owner)), lambda: revoked.pop(self.owner))

    @verb(waits=True, many=True)
    async def take(self, step: str, most: int = 1) -> list[tuple[Ticket, Group]]:
        """Up to ``most`` groups that lack the column ``step`` and have what it needs, as soon as there are some; none after
        the deadline. Raises StreamError where the stream has no such step."""
        gate = self.stream.gate
        return await self.stream.some(lambda: bool(gate.enrichment.waiting(step)), lambda: gate.take(self.owner, step, most))

    @verb()
    async def write(self, ticket: Ticket, step: str, found: Sequence[Change]) -> bool:
        """Write the column ``step`` of a group; False if it is not wanted any more."""
        return await self.stream.now(lambda: self.stream.gate.write(self.owner, ticket, step, found))

    async def leave(self) -> None:
        """The worker is gone: what it worked on is given to others."""
        await self.stream.now(lambda: self.stream.gate.release_owner(self.owner))


class LearnerClient:
    """The learner's side of a stream: knows of the batches it takes what belongs into a checkpoint."""

    def __init__(self, rules: Rules, source: Stream | None = None) -> None:
        """``source`` is the stream; it may be set later, once it is known what is trained."""
        self.rules, self.source = rules, source
        self.ledger: Mapping[str, Any] = Ledger().values()
        self.saved: Version = 0
        """Version of the newest checkpoint."""

    async def lease(self, version: Version) -> Lease:
        """The next batch for weights of ``version``; waits for it as long as the stream does."""
        assert self.source is not None, "the stream is not open"
        return await self.source.lease(version)

    def trained(self, lease: Lease) -> None:
        """The optimizer has used the lease; its ordinals belong to the weights from now on."""
        self.ledger = lease.ledger

    def acknowledge(self, version: Version | None = None) -> None:
        """A checkpoint of ``version``, or of all that was trained, is durable; the stream hears of it with the next release."""
        self.saved = int(self.ledger["version"]) if version is None else version

    async def release(self, lease: Lease) -> None:
        """The weights trained on the lease are published: its slots open."""
        assert self.source is not None, "the stream is not open"
        await self.source.release(lease.number, self.saved)

    def state(self) -> State:
        """Which ordinals are trained; all others are started again by a resume."""
        return State({}, dict(self.ledger))

    def load_state(self, state: State) -> None:
        self.ledger = dict(state.values)
