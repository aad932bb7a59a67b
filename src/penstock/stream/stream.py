"""The bounded, leased, versioned queue between rollout and learner; owner of the gate.

With batch size ``B`` and ``max_lag = k`` there are ``(k + 1) · B`` slots. A slot is taken when a group is *started* and
given back only after the weights trained on its batch have been *published*, so no sample is born staler than the bound.
The rules are :mod:`penstock.stream.gate`'s; here is the waiting: every wait has a deadline and names whom it waits for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from penstock.core.clock import Clock, WallClock
from penstock.core.contracts import State
from penstock.core.errors import StreamError
from penstock.core.types import Group, Version
from penstock.stream.columns import Change
from penstock.stream.gate import Gate
from penstock.stream.ledger import Ledger
from penstock.stream.rules import UNLIMITED, Lease, Rules, StreamStats, Ticket

DEADLINE = 3600.0
"""Seconds that a wait for work may last."""


class Stream:
    """Admits work by slots, gathers groups and their columns, leases batches.

    ``deadline`` is how many seconds any wait may last before it fails and names whom it waited for.
    """

    def __init__(self, rules: Rules, deadline: float = DEADLINE, clock: Clock | None = None) -> None:
        self.gate = Gate(rules)
        self.deadline = deadline
        self.clock = clock or WallClock()
        self._changed = asyncio.Condition()

    @property
    def rules(self) -> Rules:
        return self.gate.rules

    @property
    def stats(self) -> StreamStats:
        return self.gate.stats

    @property
    def ledger(self) -> Ledger:
        return self.gate.ledger

    # ---- those who draw groups

    async def admit(self, maker: str = "", most: int = 1, in_hand: int = UNLIMITED) -> list[Ticket]:
        """Take up to ``most`` slots, at least one; gives the tickets of the prompts to start. ``maker`` draws no more than
        ``in_hand`` groups at a time, counted when it is given more: a request may wait while its groups end.

        Waits while all slots are taken; unblocked by :meth:`release`. Raises StreamError after the deadline.
        """
        started = self.clock.now()
        async with self._changed:
            await self._until(lambda: self.gate.may_draw(maker, in_hand), "a free slot", "the learner to publish new weights")
            tickets = self.gate.admit(maker, most, in_hand)
        self.stats.waited_for_slots += self.clock.now() - started
        return tickets

    async def put(self, ticket: Ticket, group: Group) -> bool:
        """Hand over the drawn group of a ticket; False if it is not wanted any more. Never waits: its slot is its place."""
        async with self._changed:
            wanted = self.gate.put(ticket, group)
            self._changed.notify_all()
        return wanted

    async def withdrawn(self, maker: str = "") -> list[Ticket]:
        """Tickets of ``maker`` that are worth nothing any more, as soon as there are some; waits without a deadline."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.gate.withdrawn.get(maker))
            return self.gate.withdrawn.pop(maker)

    # ---- those who write columns

    async def take(self, stage: str, maker: str = "", most: int = 1) -> list[tuple[Ticket, Group]]:
        """Up to ``most`` groups, at least one, that lack the column ``stage`` and have what it needs. Waits for them."""
        async with self._changed:
            await self._until(lambda: self.gate.wanted(stage), f'groups without "{stage}"', "the rollout")
            return self.gate.take(stage, maker, most)

    async def write(self, ticket: Ticket, stage: str, found: Sequence[Change]) -> bool:
        """Write the column ``stage`` of a group; False if it is not wanted any more."""
        async with self._changed:
            wanted = self.gate.write(ticket, stage, found)
            self._changed.notify_all()
        return wanted

    async def leave(self, maker: str) -> None:
        """``maker`` is gone: what it worked on is given to others."""
        async with self._changed:
            self.gate.leave(maker)
            self._changed.notify_all()

    # ---- the learner

    async def lease(self, version: Version) -> Lease:
        """The next batch for weights of ``version``.

        Waits for its groups; unblocked by :meth:`put` and :meth:`write`. Raises StreamError after the deadline, if more
        groups than ``dynamic_sampling`` allows were passed over, or if a group is staler than ``max_lag``.
        """
        started, found = self.clock.now(), []

        def complete() -> bool:
            before = self.stats.dropped
            lease = self.gate.lease(version)
            found.extend([lease] if lease is not None else [])
            if self.stats.dropped > before or lease is not None:  # stale groups wait to be drawn, and slots may be open
                self._changed.notify_all()
            return lease is not None

        async with self._changed:
            await self._until(complete, f"{self.rules.batch} groups", "the rollout")
        self.stats.waited_for_groups += self.clock.now() - started
        return found[0]

    def trained(self, lease: Lease) -> None:
        """The optimizer has used the lease; its ordinals belong to the weights from now on."""
        self.gate.trained(lease)

    async def release(self, lease: Lease) -> None:
        """The weights trained on the lease are published: its slots open again."""
        async with self._changed:
            self.gate.release(lease)
            self._changed.notify_all()

    def acknowledge(self) -> None:
        """A checkpoint holds every trained lease: forget their groups."""
        self.gate.acknowledge()

    async def restore(self, kept: State) -> None:
        """The learner died and goes on from a checkpoint whose ledger is ``kept``: later leases are given out again."""
        async with self._changed:
            self.gate.restore(kept)
            self._changed.notify_all()

    def state(self) -> State:
        """Which ordinals are trained; all others are started again by a resume."""
        return self.ledger.state()

    def load_state(self, state: State) -> None:
        self.gate.load_state(state)

    # ---- waiting

    async def _until(self, ready: Callable[[], bool], what: str, who: str) -> None:
        """Wait on the condition until ``ready()``; the caller holds the lock."""
        if ready():
            return
        try:
            await self.clock.wait(self._changed.wait_for(ready), self.deadline)
        except TimeoutError:
            raise StreamError(f"waited {self.deadline:.0f} s for {what} from {who}; {self.gate.describe()}") from None
