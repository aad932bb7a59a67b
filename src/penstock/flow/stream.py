"""The bounded, leased, versioned queue between rollout and learner; owner of the gate.

With batch size ``B`` and ``max_lag = k`` there are ``(k + 1) · B`` slots. A slot is taken when a group is *started* and
given back only after the weights trained on its batch have been *published*, so no sample is born staler than the bound.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.core.clock import Clock, WallClock
from penstock.core.contracts import State
from penstock.core.errors import StreamError
from penstock.core.types import Group, Version


@dataclass(eq=False)
class Lease:
    """A batch in the learner's hands: trained, then acknowledged once durable; returned if the learner dies."""

    ordinals: tuple[int, ...]
    groups: tuple[Group, ...]
    passed: tuple[int, ...] = ()
    """Ordinals whose groups were passed over on the way to this batch; they count as trained with it."""
    released: bool = False


@dataclass
class StreamStats:
    """Counts since the run began."""

    admitted: int = 0
    delivered: int = 0
    trained: int = 0
    passed: int = 0
    waited_for_groups: float = 0.0
    waited_for_slots: float = 0.0
    largest_lag: int = 0


@dataclass
class Stream:
    """Admits work by slots, buffers finished groups, leases batches.

    Attributes:
        batch: groups a lease holds.
        max_lag: batches that a group may be older than the weights it trains.
        deadline: seconds any wait may last before it fails and names whom it waited for.
        keep: whether a finished group is worth a place in a batch; None keeps all. One that is not is passed over: its slot
            opens at once, so that the next prompt's group takes its place, and its prompt is not drawn again.
        refill: batches' worth of groups that may be passed over for each batch that may be in flight.
    """

    batch: int
    max_lag: int = 0
    deadline: float = 3600.0
    clock: Clock = field(default_factory=WallClock)
    keep: Callable[[Group], bool] | None = None
    refill: int = 0
    stats: StreamStats = field(default_factory=StreamStats)

    def __post_init__(self) -> None:
        self.slots = (self.max_lag + 1) * self.batch
        self._free = self.slots
        self._floor = 0  # every ordinal below it has been trained
        self._trained: set[int] = set()
        self._next = 0
        self._started: set[int] = set()
        self._ready: dict[int, Group] = {}
        self._passed: dict[int, str] = {}  # ordinals passed over for the next batches, and why
        self._withheld = 0  # slots of passed groups beyond the limit: they stay closed
        self._leases: list[Lease] = []
        self._changed = asyncio.Condition()

    @property
    def admitted(self) -> int:
        """Ordinals handed out so far, trained or in flight."""
        return self._next

    # ---- rollout's side

    async def admit(self) -> int:
        """Take a slot; gives the ordinal of the prompt to start.

        Waits while all slots are taken; unblocked by :meth:`release`. Raises StreamError after the deadline.
        """
        started = self.clock.now()
        async with self._changed:
            await self._until(lambda: self._free > 0, "a free slot", "the learner to publish new weights")
            self._free -= 1
            ordinal = self._take_ordinal()
            self._started.add(ordinal)
        self.stats.admitted += 1
        self.stats.waited_for_slots += self.clock.now() - started
        return ordinal

    def _take_ordinal(self) -> int:
        while self._next in self._trained:
            self._next += 1
        self._next += 1
        return self._next - 1

    async def put(self, ordinal: int, group: Group) -> None:
        """Hand over the finished group of an admitted ordinal. Never waits: its slot is its place.

        Raises StreamError for an ordinal that was not admitted or came twice.
        """
        async with self._changed:
            if ordinal not in self._started:
                raise StreamError(f"group {group.key} (ordinal {ordinal}) was not admitted, or was delivered before")
            self._started.discard(ordinal)
            self.stats.delivered += 1
            if self.keep is None or self.keep(group):
                self._ready[ordinal] = group
            else:
                self._pass_over(ordinal, group)
            self._changed.notify_all()

    def _pass_over(self, ordinal: int, group: Group) -> None:
        """Give the slot of a group without signal to the next prompt, unless too many were passed over already."""
        self._passed[ordinal] = _why(group)
        self.stats.passed += 1
        if len(self._passed) <= self.refill * self.slots:
            self._free += 1
        else:
            self._withheld += 1

    # ---- the learner's side

    async def lease(self, version: Version) -> Lease:
        """The next batch, in the order of admission, for weights of ``version``.

        Waits for the oldest ``batch`` groups, also where younger ones are ready: were a straggler overtaken, it would be
        too old when it comes. Unblocked by :meth:`put`. Raises StreamError after the deadline, if more groups than
        ``refill`` allows were passed over, or if a group is staler than ``max_lag`` (which the slots make impossible unless
        versions were published out of order).
        """
        started = self.clock.now()
        async with self._changed:
            await self._until(lambda: self._due() is not None or self._exhausted(), f"{self.batch} groups", "the rollout")
            ordinals = self._due()
            if ordinals is None:
                raise StreamError(self._too_many_passed())
            passed = tuple(sorted(ordinal for ordinal in self._passed if ordinal < ordinals[-1]))
            for ordinal in passed:
                del self._passed[ordinal]
            self._free, self._withheld = self._free + self._withheld, 0
            lease = Lease(ordinals, tuple(self._ready.pop(ordinal) for ordinal in ordinals), passed)
            self._leases.append(lease)
            self._changed.notify_all()
        self.stats.waited_for_groups += self.clock.now() - started
        self._check_age(lease, version)
        return lease

    def _due(self) -> tuple[int, ...] | None:
        """The oldest ``batch`` ordinals that no lease holds, once the groups of all of them are there."""
        due = sorted([*self._started, *self._ready])[: self.batch]
        return tuple(due) if len(due) == self.batch and all(ordinal in self._ready for ordinal in due) else None

    def _exhausted(self) -> bool:
        """Whether no group is on its way any more because too many were passed over."""
        return self._withheld > 0 and not self._started

    def _too_many_passed(self) -> str:
        last = self._passed[max(self._passed)]
        return (
            f"{len(self._passed)} groups without signal were passed over, more than refill={self.refill} allows for batches "
            f"of {self.batch}; in the last one {last}. Use prompts the model solves sometimes, or raise refill"
        )

    def _check_age(self, lease: Lease, version: Version) -> None:
        for group in lease.groups:
            lag = version - group.oldest_version if group.oldest_version >= 0 else 0
            self.stats.largest_lag = max(self.stats.largest_lag, lag)
            if not 0 <= lag <= self.max_lag:
                raise StreamError(f"group {group.key} is {lag} versions old; max_lag={self.max_lag} forbids training on it")

    def trained(self, lease: Lease) -> None:
        """The optimizer has used the lease; its ordinals belong to the weights from now on."""
        self._trained.update(lease.ordinals + lease.passed)
        while self._floor in self._trained:
            self._trained.discard(self._floor)
            self._floor += 1
        self.stats.trained += len(lease.ordinals)

    async def release(self, lease: Lease) -> None:
        """The weights trained on the lease are published: its slots open again."""
        async with self._changed:
            if lease.released:
                raise StreamError(f"the lease of ordinals {lease.ordinals} was released twice")
            lease.released = True
            self._free += len(lease.ordinals)
            self._changed.notify_all()

    def acknowledge(self) -> None:
        """A checkpoint holds every trained lease: forget their groups."""
        self._leases = [lease for lease in self._leases if not self._is_trained(lease.ordinals[0])]

    def _is_trained(self, ordinal: int) -> bool:
        return ordinal < self._floor or ordinal in self._trained

    async def restore(self) -> None:
        """The learner died: its untrained leases go back into the stream."""
        async with self._changed:
            for lease in self._leases:
                if not self._is_trained(lease.ordinals[0]):
                    self._ready.update(zip(lease.ordinals, lease.groups, strict=True))
                    self._passed.update(dict.fromkeys(lease.passed, "nothing could be learned"))
            self._leases = [lease for lease in self._leases if self._is_trained(lease.ordinals[0])]
            self._changed.notify_all()

    # ---- state

    def state(self) -> State:
        """Which ordinals are trained; all others are started again by a resume."""
        return State({}, {"floor": self._floor, "trained": sorted(self._trained)})

    def load_state(self, state: State) -> None:
        self._floor = self._next = int(state.values["floor"])
        self._trained = set(map(int, state.values["trained"]))

    async def _until(self, ready, what: str, who: str) -> None:  # type: ignore[no-untyped-def]
        """Wait on the condition until ``ready()``; the caller holds the lock."""
        if ready():
            return
        try:
            await self.clock.wait(self._changed.wait_for(ready), self.deadline)
        except TimeoutError:
            flying = sorted(self._started)[:5]
            raise StreamError(
                f"waited {self.deadline:.0f} s for {what} from {who}; {len(self._ready)} groups are ready, "
                f"{len(self._started)} in flight (ordinals {flying}…)"
            ) from None


def _why(group: Group) -> str:
    """What a group without signal looks like, in the words of an error."""
    errors = [sample.error for sample in group.samples if sample.error]
    rewards = [sample.reward for sample in group.samples if sample.valid and sample.reward is not None]
    if len(set(rewards)) == 1:
        return f"all rewards were {rewards[0]:g}"
    return f"{len(errors)} of {len(group.samples)} samples failed: {errors[0]}" if errors else "nothing could be learned"
