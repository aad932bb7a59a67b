"""The stream's bookkeeping as a synchronous state machine: slots, tickets, columns, leases and the bound on age.

Nothing in here waits and nothing knows of processes, so the same rules hold in one process, between many, and under the
virtual clock of a simulator. :class:`penstock.stream.stream.Stream` adds the waiting.

Why the bound holds with ``on_stale="wait"``: there are ``(k + 1) · B`` slots, and a slot opens again when the weights of its
batch are published. When version ``p`` is published, ``p · B`` groups have been trained, so a group admitted now is at most
the ``(p + k + 1) · B``-th; batches are made in the order of admission, so it is trained at version ``p + k`` at the latest, and
its tokens are of version ``p`` (its ticket's ``min_version``) or younger.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from penstock.core.errors import StreamError
from penstock.core.types import Group, Version
from penstock.stream.enrichment import TOKENS, Change, Enrichment, merged
from penstock.stream.entry import Entry, Ticket
from penstock.stream.lag import token_versions
from penstock.stream.leases import Lease, Leases
from penstock.stream.rules import BATCH_SELECTORS, Rules, StreamStats
from penstock.stream.staleness import Staleness


class Ledger:
    """Consumed ordinals, kept as a floor below which all are consumed and the set of those above it.

    There is one, the gate's. A lease carries what it will be once the batch is trained; that is what a learner's checkpoints
    hold.
    """

    def __init__(self, kept: Mapping[str, Any] | None = None) -> None:
        """Empty, or as :meth:`values` gave it."""
        kept = kept or {"floor": 0, "trained": (), "version": 0}
        self.floor, self.above = int(kept["floor"]), set(map(int, kept["trained"]))
        self.version: Version = int(kept["version"])
        """Version of the weights that come of the last batch."""

    def __contains__(self, ordinal: int) -> bool:
        return ordinal < self.floor or ordinal in self.above

    def add(self, ordinals: Iterable[int], version: Version) -> None:
        """Ordinals whose training makes ``version``."""
        self.above.update(ordinals)
        self.version = version
        while self.floor in self.above:
            self.above.discard(self.floor)
            self.floor += 1

    def values(self) -> dict[str, Any]:
        """Plain values, as JSON holds them."""
        return {"floor": self.floor, "trained": sorted(self.above), "version": self.version}


class Filter:
    """Ordinals that were filtered since the last batch, and the slots that stay closed beyond the limit."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.reasons: dict[int, str] = {}
        """By ordinal: what a filtered group looked like."""
        self.withheld = 0

    def add(self, ordinal: int, group: Group) -> int:
        """Filter a group: gives how many slots open, 0 where too many were filtered already."""
        self.reasons[ordinal] = without_signal(group)
        opens = len(self.reasons) <= self.rules.dynamic_sampling * self.rules.slots
        self.withheld += not opens
        return int(opens)

    def consume(self, last: int) -> tuple[tuple[int, ...], int]:
        """A batch up to the ordinal ``last`` is complete: the filtered ordinals on the way to it, and how many slots open."""
        below = tuple(sorted(ordinal for ordinal in self.reasons if ordinal < last))
        for ordinal in below:
            del self.reasons[ordinal]
        opens, self.withheld = self.withheld, 0
        return below, opens

    def refuse_shortage(self, needed: int) -> None:
        """Nothing is on its way any more: fail if so many slots are withheld that ``needed`` groups cannot come together."""
        if not self.withheld or self.rules.slots - self.withheld >= needed:
            return
        raise StreamError(
            f"{len(self.reasons)} groups without signal were filtered, more than "
            f"dynamic_sampling={self.rules.dynamic_sampling} allows for batches of {self.rules.batch}; in the last one "
            f"{self.reasons[max(self.reasons)]}. Use prompts the model solves sometimes, or raise dynamic_sampling"
        )


def without_signal(group: Group) -> str:
    """What a group without signal looks like, in the words of an error."""
    errors = [sample.error for sample in group.samples if sample.error]
    rewards: Sequence[float] = [sample.reward for sample in group.samples if sample.valid and sample.reward is not None]
    if len(set(rewards)) == 1:
        return f"all rewards were {rewards[0]:g}"
    return f"{len(errors)} of {len(group.samples)} samples failed: {errors[0]}" if errors else "nothing could be learned"


UNLIMITED = 1 << 30
"""Groups that a generator may have in flight where the slots are the only limit."""

MAX_FAILED_OWNERS = 10
"""Workers that may die on a group in a row; then the group is taken for what kills them, and the run ends with its name."""


class Gate:
    """Admits work by slots, gathers the columns of groups, leases batches. Every verb answers at once.

    Workers are known by their names as owners of what they work on; what others bring of it is refused.
    """

    def __init__(self, rules: Rules, kept: Mapping[str, Any] | None = None) -> None:
        """From the beginning, or from ``kept``, the ledger of a checkpoint: what is not in it is started again."""
        self.rules, self.stats = rules, StreamStats()
        self.ledger = Ledger(kept)
        self.free = rules.slots
        self.published: Version = self.ledger.version
        self.entries: dict[int, Entry] = {}  # in ascending order
        self.filter = Filter(rules)
        self.enrichment = Enrichment(rules.enrichment)
        self.leases = Leases(self.ledger.version)
        self.staleness = Staleness(rules, self.stats)
        self.revoked: dict[str, list[Ticket]] = {}  # by owner: tickets that are worth nothing any more
        self._in_flight: Counter[str] = Counter()  # by owner: groups that it generates
        self._idle: set[int] = set()  # ordinals that nobody generates
        self._next = self.ledger.floor
        self._ready, self._numbers = itertools.count(), itertools.count(1)

    # ---- generators

    def groups(self) -> Iterator[Group]:
        """Those that are here or leased."""
        yield from (entry.group for entry in self.entries.values() if entry.group is not None)
        for lease in self.leases:
            yield from (*lease.groups, *lease.reused)

    def admit(self, owner: str, most: int = 1, max_in_flight: int = UNLIMITED) -> list[Ticket]:
        """Up to ``most`` tickets for ``owner``: first groups that came back, then new ones while slots are free; but never
        more than ``max_in_flight`` groups for it to generate at a time.

        Raises:
            StreamError: workers died on a group again and again.
        """
        self._refuse_poison()
        most = min(most, max_in_flight - self._in_flight[owner])
        tickets = [self._start(ordinal, owner) for ordinal in sorted(self._idle)[:most]]
        while self.free > 0 and len(tickets) < most:
            self.free -= 1
            while self._next in self.ledger:
                self._next += 1
            self.entries[self._next] = Entry(Ticket(self._next))
            self._next += 1
            tickets.append(self._start(self._next - 1, owner))
        self.stats.admitted += len(tickets)
        return tickets

    def _start(self, ordinal: int, owner: str) -> Ticket:
        entry = self.entries[ordinal]
        self._idle.discard(ordinal)
        entry.ticket = entry.ticket._replace(min_version=self.published)
        entry.owners[TOKENS] = owner
        self._in_flight[owner] += 1
        return entry.ticket

    def may_admit(self, owner: str, max_in_flight: int = UNLIMITED) -> bool:
        """Whether :meth:`admit` would give a ticket."""
        return (self.free > 0 or bool(self._idle)) and self._in_flight[owner] < max_in_flight

    def put(self, owner: str, ticket: Ticket, group: Group) -> bool:
        """Deliver a generated group; False if it is not wanted: it was started again, or is another worker's.

        Raises:
            StreamError: the ordinal was not admitted, or its group is there.
        """
        if ticket.ordinal >= self._next:
            raise StreamError(f"group {group.key} (ordinal {ticket.ordinal}) was not admitted")
        entry = self._entry(ticket)
        if entry is not None and entry.group is not None:
            raise StreamError(f"group {group.key} (ordinal {ticket.ordinal}) was delivered before")
        if entry is None or entry.owners.get(TOKENS) != owner:
            return self._refuse(owner, ticket)
        del entry.owners[TOKENS]
        self._in_flight[owner] -= 1
        entry.group, entry.versions, entry.columns, entry.failed_owners = group, token_versions(group), {TOKENS}, []
        self.stats.delivered += 1
        self._go_on(entry)
        return True

    def _refuse(self, owner: str, ticket: Ticket) -> bool:
        self.stats.refused += 1
        if ticket in (tickets := self.revoked.get(owner, [])):  # it knows now
            tickets.remove(ticket)
        return False

    def _entry(self, ticket: Ticket) -> Entry | None:
        """The group of a ticket, unless it was started again."""
        entry = self.entries.get(ticket.ordinal)
        return entry if entry is not None and entry.ticket.attempt == ticket.attempt else None

    # ---- those who write columns

    def take(self, owner: str, step: str, most: int = 1) -> list[tuple[Ticket, Group]]:
        """Up to ``most`` groups that lack the column ``step`` and have what it needs, in the order in which they came.

        Raises:
            StreamError: the stream has no such step.
        """
        waiting = self.enrichment.waiting(step)
        taken = [waiting.pop(ordinal) for ordinal in list(waiting)[:most]]
        for entry in taken:
            entry.owners[step] = owner
        return [(entry.ticket, entry.whole) for entry in taken]

    def write(self, owner: str, ticket: Ticket, step: str, found: Sequence[Change]) -> bool:
        """Write the column ``step``; False if that is not wanted: the group was started again, or is another worker's.

        Raises:
            StreamError: there is not one finding a sample; the group stays with its owner.
        """
        entry = self._entry(ticket)
        if entry is None or entry.group is None or entry.owners.get(step) != owner:
            return self._refuse(owner, ticket)
        entry.group, entry.failed_owners = merged(entry.group, found), []
        del entry.owners[step]
        entry.columns.add(step)
        self._go_on(entry)
        return True

    def _go_on(self, entry: Entry) -> None:
        """Offer a group to the steps whose inputs are there, or note that it is ready."""
        if self.enrichment.is_complete(entry):
            entry.ready = next(self._ready)
            if self.rules.keep is not None and not self.rules.keep(entry.whole):
                del self.entries[entry.ordinal]
                self.stats.filtered += 1
                self.free += self.filter.add(entry.ordinal, entry.whole)
        self.enrichment.offer(entry)

    # ---- workers that are gone, and groups that are started again

    def release_owner(self, owner: str) -> None:
        """A worker is gone: what it worked on is given to others."""
        self.revoked.pop(owner, None)
        self._in_flight.pop(owner, None)
        for ordinal, entry in self.entries.items():
            held = [column for column, holder in entry.owners.items() if holder == owner]
            for column in held:
                del entry.owners[column]
                self.stats.returned += 1
            entry.failed_owners += [owner] if held else []
            if TOKENS in held:
                entry.ticket = entry.ticket._replace(attempt=entry.ticket.attempt + 1)
                self._idle.add(ordinal)
            elif held:
                self.enrichment.offer(entry)

    def _refuse_poison(self) -> None:
        suspects = [entry for entry in self.entries.values() if len(entry.failed_owners) >= MAX_FAILED_OWNERS]
        if suspects:
            ordinals, failed = [entry.ordinal for entry in suspects], suspects[0].failed_owners
            named = f"the group of ordinal {ordinals[0]}" if len(ordinals) == 1 else f"one of the groups of ordinals {ordinals}"
            raise StreamError(
                f"{len(failed)} workers in a row died on {named}, the last one {failed[-1]}; see why that ended, or leave the "
                "prompt out"
            )

    def _restart_stale(self, version: Version) -> None:
        """Start groups again of which nothing can be trained at ``version`` any more; what comes of them is refused."""
        for entry in [entry for entry in self.entries.values() if self.staleness.is_stale(entry, version)]:
            if TOKENS in entry.owners:
                self._in_flight[entry.owners[TOKENS]] -= 1
            for owner in set(entry.owners.values()):
                self.revoked.setdefault(owner, []).append(entry.ticket)
            self.stats.dropped += 1
            self.stats.tokens_dropped += entry.versions.tokens
            again = Entry(entry.ticket._replace(attempt=entry.ticket.attempt + 1), failed_owners=entry.failed_owners)
            again.stale_restarts = entry.stale_restarts + 1
            self.entries[entry.ordinal] = again
            self._idle.add(entry.ordinal)
            self.enrichment.withdraw(entry.ordinal)

    # ---- the learner

    def lease(self, version: Version) -> Lease | None:
        """The next batch for weights of ``version``; None while it is not complete.

        Raises:
            StreamError: more groups were filtered than ``dynamic_sampling`` allows, workers died on a group again and again,
                or a group is staler than ``max_lag`` though the slots forbid it.
        """
        self._refuse_poison()
        if self.leases.repeats:
            return self.leases.repeat(version)
        if self.rules.on_stale != "wait":
            self._restart_stale(version)
        fresh = self.staleness.fresh(version)
        chosen = self._due(fresh)
        if chosen is None:
            if all(entry.is_ready for entry in self.entries.values()):
                self.filter.refuse_shortage(fresh)
            return None
        reused = self.staleness.reuse(version, self.rules.batch - len(chosen))
        groups = tuple(self.staleness.trained_part(entry, version) for entry in chosen)
        self.staleness.keep(chosen)
        ordinals = tuple(entry.ordinal for entry in chosen)
        for ordinal in ordinals:
            del self.entries[ordinal]
        filtered, opens = self.filter.consume(max(ordinals))
        self.free += opens
        self.ledger.add(ordinals + filtered, version + 1)
        lease = Lease(next(self._numbers), version, ordinals, groups, filtered, reused, self.ledger.values())
        self.leases.add(lease)
        return lease

    def _due(self, count: int) -> list[Entry] | None:
        """The fresh groups of the next batch, once they are there."""
        if self.rules.on_stale == "wait" or self.staleness.starves(self.entries.values()):
            due = list(islice(self.entries.values(), count))
            return due if len(due) == count and all(entry.is_ready for entry in due) else None
        ready = sorted((entry for entry in self.entries.values() if entry.is_ready), key=lambda entry: entry.ready)
        if len(ready) < count:
            return None
        return [ready[index] for index in BATCH_SELECTORS[self.rules.batch_selector](ready, count)]

    def release(self, number: int, saved: Version = 0) -> None:
        """The weights trained on a lease are published: its slots open. ``saved``: the version of the newest checkpoint.

        Raises:
            StreamError: it was released before, or is none of the learner's.
        """
        lease, opens = self.leases.release(number)
        self.free += opens
        self.stats.trained += len(lease.ordinals)
        self.published = max(self.published, lease.version + 1)
        self.leases.acknowledge(saved)

    def restore(self, kept: Mapping[str, Any]) -> None:
        """The learner died and goes on from ``kept``, the ledger of its checkpoint: later leases are given out again.

        Raises:
            StreamError: the checkpoint is older than one whose leases were acknowledged and forgotten.
        """
        version = Ledger(kept).version
        self.free += self.leases.restore(version)
        self.published = max(self.published, version)

    def describe(self) -> str:
        """Where groups are, for the message of a wait that was too long."""
        at = [(ordinal, entry.owners) for ordinal, entry in self.entries.items() if not entry.is_ready]
        owners = sorted({f"{owner} ({column})" for _, held in at for column, owner in held.items() if owner})
        named = f", with {', '.join(owners)}" if owners else ""
        ready = len(self.entries) - len(at)
        return f"{ready} groups are ready, {len(at)} in flight (ordinals {[ordinal for ordinal, _ in at[:5]]}…){named}"
