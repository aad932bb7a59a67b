"""The stream's bookkeeping as a synchronous state machine: slots, tickets, columns, leases and the bound on age.

Nothing in here waits and nothing knows of processes, so the same rules hold in one process, between many, and under the
virtual clock of a simulator. :class:`penstock.flow.stream.Stream` adds the waiting.

Why the bound holds with ``on_stale="wait"``: there are ``(k + 1) · B`` slots, and a slot opens again when the weights of its
batch are published. When version ``p`` is published, ``p · B`` groups have been trained, so whoever is admitted now is at most
the ``(p + k + 1) · B``-th; batches are made in the order of admission, so it is trained at version ``p + k`` at the latest, and
its tokens are of version ``p`` (its ticket's ``floor``) or younger.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice

from penstock.core.contracts import State
from penstock.core.errors import StreamError
from penstock.core.types import Group, Version
from penstock.flow.columns import TOKENS, Change, actions, masked, merged
from penstock.flow.ledger import Ledger
from penstock.flow.rules import DEATHS, PATIENCE, UNLIMITED, Entry, Lease, Rules, StreamStats, Ticket
from penstock.flow.samplers import SAMPLERS


class Gate:
    """Admits work by slots, gathers the columns of groups, leases batches. Every verb answers at once."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.stats = StreamStats()
        self.ledger = Ledger()
        self.free = rules.slots
        self.published: Version = 0
        self.entries: dict[int, Entry] = {}  # in ascending order
        self.passed: dict[int, str] = {}  # ordinals passed over for the next batches, and why
        self.withdrawn: dict[str, list[Ticket]] = {}  # by maker: tickets that are worth nothing any more
        self._drawing: Counter[str] = Counter()  # by maker: groups that it draws
        self._idle: set[int] = set()  # ordinals that nobody draws
        self._lacking: dict[str, dict[int, None]] = {
            stage.name: {} for stage in rules.stages
        }  # by column: who wants it, in order
        self._withheld = 0  # slots of passed groups beyond the limit: they stay closed
        self._next = 0
        self._turn = 0
        self._leases: list[Lease] = []
        self._repeat: list[Lease] = []
        """Leases of a learner that died, which the next one is given again as they were."""
        self._used: list[Entry] = []
        """Trained groups that may be in a batch again, oldest first."""

    # ---- those who draw groups

    def admit(self, maker: str, most: int = 1, in_hand: int = UNLIMITED) -> list[Ticket]:
        """Up to ``most`` tickets for ``maker``: first groups that came back, then new ones while slots are free; but never
        more than ``in_hand`` groups for it to draw at a time.

        Raises:
            StreamError: a group took down everyone who worked on it.
        """
        self._refuse_poison()
        most = min(most, in_hand - self._drawing[maker])
        tickets = [self._start(ordinal, maker) for ordinal in sorted(self._idle)[:most]]
        while self.free > 0 and len(tickets) < most:
            self.free -= 1
            while self._next in self.ledger:
                self._next += 1
            self.entries[self._next] = Entry(Ticket(self._next))
            self._next += 1
            tickets.append(self._start(self._next - 1, maker))
        self.stats.admitted += len(tickets)
        return tickets

    def _start(self, ordinal: int, maker: str) -> Ticket:
        entry = self.entries[ordinal]
        self._idle.discard(ordinal)
        entry.ticket = entry.ticket._replace(floor=self.published)
        entry.makers[TOKENS] = maker
        self._drawing[maker] += 1
        return entry.ticket

    @property
    def open(self) -> bool:
        """Whether there is a group to draw."""
        return self.free > 0 or bool(self._idle)

    def may_draw(self, maker: str, in_hand: int) -> bool:
        """Whether :meth:`admit` would give a ticket."""
        return self.open and self._drawing[maker] < in_hand

    def put(self, ticket: Ticket, group: Group) -> bool:
        """Hand over a drawn group; False if it was started again meanwhile, so that this one is not wanted.

        Raises:
            StreamError: the ordinal was not admitted, or its group is there.
        """
        if ticket.ordinal >= self._next:
            raise StreamError(f"group {group.key} (ordinal {ticket.ordinal}) was not admitted")
        entry = self._entry(ticket)
        if entry is None:
            return self._refuse(ticket)
        if TOKENS not in entry.makers:
            raise StreamError(f"group {group.key} (ordinal {ticket.ordinal}) was delivered before")
        self._drawing[entry.makers.pop(TOKENS)] -= 1
        entry.group, entry.columns, entry.lost = group, {TOKENS}, []
        self.stats.delivered += 1
        self._go_on(entry)
        return True

    def _refuse(self, ticket: Ticket) -> bool:
        self.stats.refused += 1
        for tickets in self.withdrawn.values():  # whoever brings it need not be told any more
            if ticket in tickets:
                tickets.remove(ticket)
        return False

    def _entry(self, ticket: Ticket) -> Entry | None:
        entry = self.entries.get(ticket.ordinal)
        return entry if entry is not None and entry.ticket.attempt == ticket.attempt else None

    # ---- those who write columns

    def take(self, stage: str, maker: str, most: int = 1) -> list[tuple[Ticket, Group]]:
        """Up to ``most`` groups that lack the column ``stage`` and have what it needs, in the order in which they came.

        Raises:
            StreamError: the stream has no such stage.
        """
        if stage not in self._lacking:
            raise StreamError(f'no stage "{stage}"; the stream has {list(self._lacking)}')
        found: list[tuple[Ticket, Group]] = []
        for ordinal in list(self._lacking[stage])[:most]:
            entry = self.entries[ordinal]
            del self._lacking[stage][ordinal]
            entry.makers[stage] = maker
            if entry.group is not None:
                found.append((entry.ticket, entry.group))
        return found

    def wanted(self, stage: str) -> bool:
        """Whether :meth:`take` would give a group."""
        return bool(self._lacking.get(stage, True))

    def write(self, ticket: Ticket, stage: str, found: Sequence[Change]) -> bool:
        """Write the column ``stage``; False if that is not wanted any more: the group was started again, or taken from you.

        Raises:
            StreamError: there is not one finding a sample; the group stays with its maker.
        """
        entry = self._entry(ticket)
        if entry is None or entry.group is None or stage not in entry.makers:
            return self._refuse(ticket)
        entry.group, entry.lost = merged(entry.group, found), []
        del entry.makers[stage]
        entry.columns.add(stage)
        self._go_on(entry)
        return True

    def _go_on(self, entry: Entry) -> None:
        """Offer a group to the stages whose inputs are there, or note that it is ready."""
        if self._is_ready(entry) and entry.group is not None:
            entry.turn, self._turn = self._turn, self._turn + 1
            if self.rules.keep is not None and not self.rules.keep(entry.group):
                self._pass_over(entry.ticket.ordinal, entry.group)
        for stage in self.rules.stages:
            there = stage.name in entry.columns or stage.name in entry.makers
            if not there and entry.columns.issuperset(stage.inputs):
                self._lacking[stage.name][entry.ticket.ordinal] = None

    def _is_ready(self, entry: Entry) -> bool:
        return entry.group is not None and all(stage.name in entry.columns for stage in self.rules.stages)

    def _pass_over(self, ordinal: int, group: Group) -> None:
        """Give the slot of a group without signal to the next prompt, unless too many were passed over already."""
        del self.entries[ordinal]
        self.passed[ordinal] = _why(group)
        self.stats.passed += 1
        if len(self.passed) <= self.rules.refill * self.rules.slots:
            self.free += 1
        else:
            self._withheld += 1

    def leave(self, maker: str) -> None:
        """``maker`` is gone: what it worked on goes back."""
        self.withdrawn.pop(maker, None)
        self._drawing.pop(maker, None)
        for ordinal, entry in self.entries.items():
            held = [column for column, who in entry.makers.items() if who == maker]
            for column in held:
                del entry.makers[column]
                self.stats.returned += 1
            entry.lost += [maker] if held else []
            if TOKENS in held:
                entry.ticket = entry.ticket._replace(attempt=entry.ticket.attempt + 1)
                self._idle.add(ordinal)
            elif held:
                self._go_on(entry)

    def _refuse_poison(self) -> None:
        suspects = [entry for entry in self.entries.values() if len(entry.lost) >= DEATHS]
        if suspects:
            ordinals, lost = [entry.ticket.ordinal for entry in suspects], suspects[0].lost
            named = f"the group of ordinal {ordinals[0]}" if len(ordinals) == 1 else f"one of the groups of ordinals {ordinals}"
            raise StreamError(
                f"{named} took down {len(lost)} of its makers in a row, the last one {lost[-1]}; see why that ended, "
                "or leave the prompt out"
            )

    # ---- the learner

    def lease(self, version: Version) -> Lease | None:
        """The next batch for weights of ``version``; None while it is not complete.

        Raises:
            StreamError: more groups than ``refill`` allows were passed over, a group took down everyone who worked on it, or
                a group is staler than ``max_lag`` though the slots forbid it (weights were published out of order).
        """
        self._refuse_poison()
        if self._repeat:
            return self._leased_again(version)
        if self.rules.on_stale != "wait":
            self._renew_stale(version)
        chosen = self._due(version)
        if chosen is None:
            self._refuse_drought(version)
            return None
        again = self._again(version, self.rules.batch - len(chosen))
        ordinals = tuple(entry.ticket.ordinal for entry in chosen)
        passed = tuple(sorted(ordinal for ordinal in self.passed if ordinal < max(ordinals)))
        for ordinal in passed:
            del self.passed[ordinal]
        self.free, self._withheld = self.free + self._withheld, 0
        groups = tuple(self._young(entry, version) for entry in chosen)
        for entry in chosen:
            del self.entries[entry.ticket.ordinal]
            entry.uses += 1
        self._used += chosen if self.rules.reuse > 1 else []
        lease = Lease(ordinals, groups, passed, again, version)
        self._leases.append(lease)
        self._check_age(lease)
        return lease

    def _leased_again(self, version: Version) -> Lease:
        lease = self._repeat[0]
        if lease.version != version:
            raise StreamError(f"a learner of version {version} asked for the batch that version {lease.version} was trained on")
        self._leases.append(self._repeat.pop(0))
        return lease

    def _due(self, version: Version) -> list[Entry] | None:
        """The fresh groups of the next batch, once they are there."""
        count = self._fresh(version)
        if self.rules.on_stale == "wait" or any(entry.withdrawals >= PATIENCE for entry in self.entries.values()):
            due = list(islice(self.entries.values(), count))
            return due if len(due) == count and all(map(self._is_ready, due)) else None
        ready = sorted(filter(self._is_ready, self.entries.values()), key=lambda entry: entry.turn)
        if len(ready) < count:
            return None
        groups = [entry.group for entry in ready if entry.group is not None]
        return [ready[place] for place in SAMPLERS[self.rules.sampler](groups, count)]

    def _fresh(self, version: Version) -> int:
        """Groups that the next batch needs beside those that may be in it again."""
        spare = sum(1 for entry in self._used if self._usable(entry, version))
        return self.rules.batch - min(spare, self.rules.batch - self.rules.fresh)

    def _usable(self, entry: Entry, version: Version) -> bool:
        fresh = entry.group is not None and version - entry.group.oldest_version <= self.rules.max_lag
        return fresh and entry.uses < self.rules.reuse

    def _again(self, version: Version, count: int) -> tuple[Group, ...]:
        self._used = [entry for entry in self._used if self._usable(entry, version)]
        chosen = self._used[:count]
        for entry in chosen:
            entry.uses += 1
        return tuple(entry.group for entry in chosen if entry.group is not None)

    def _renew_stale(self, version: Version) -> None:
        """Start groups again of which nothing could be trained at ``version`` any more."""
        oldest = version - self.rules.max_lag
        for entry in list(self.entries.values()):
            if entry.group is None:
                stale = bool(entry.makers) and entry.ticket.floor < oldest and self.rules.on_stale == "drop"
            else:
                usable = masked(entry.group, oldest) if self.rules.on_stale == "resume" else entry.group
                stale = 0 <= usable.oldest_version < oldest or (usable.oldest_version < 0 <= entry.group.oldest_version)
            if stale:
                self._withdraw(entry)

    def _withdraw(self, entry: Entry) -> None:
        if TOKENS in entry.makers:
            self._drawing[entry.makers[TOKENS]] -= 1
        for maker in set(entry.makers.values()):
            self.withdrawn.setdefault(maker, []).append(entry.ticket)
        self.stats.dropped += 1
        self.stats.tokens_dropped += actions(entry.group) if entry.group else 0
        ticket = entry.ticket._replace(attempt=entry.ticket.attempt + 1)
        self.entries[ticket.ordinal] = Entry(ticket, withdrawals=entry.withdrawals + 1, lost=entry.lost)
        self._idle.add(ticket.ordinal)
        for lacking in self._lacking.values():
            lacking.pop(ticket.ordinal, None)

    def _young(self, entry: Entry, version: Version) -> Group:
        if entry.group is None:
            raise StreamError(f"ordinal {entry.ticket.ordinal} was leased without a group")
        if self.rules.on_stale != "resume":
            return entry.group
        young = masked(entry.group, version - self.rules.max_lag)
        self.stats.tokens_masked += actions(entry.group) - actions(young)
        return young

    def _refuse_drought(self, version: Version) -> None:
        """So many slots are closed by passed groups that the batch cannot get complete."""
        left = self.rules.slots - self._withheld
        if not self._withheld or left >= self._fresh(version) or not all(map(self._is_ready, self.entries.values())):
            return
        last = self.passed[max(self.passed)]
        raise StreamError(
            f"{len(self.passed)} groups without signal were passed over, more than refill={self.rules.refill} allows for "
            f"batches of {self.rules.batch}; in the last one {last}. Use prompts the model solves sometimes, or raise refill"
        )

    def _check_age(self, lease: Lease) -> None:
        for group in lease.groups + lease.again:
            oldest = group.oldest_version
            lag = lease.version - oldest if oldest >= 0 else 0
            self.stats.largest_lag = max(self.stats.largest_lag, lag)
            if not 0 <= lag <= self.rules.max_lag:
                raise StreamError(
                    f"group {group.key} is {lag} versions old; max_lag={self.rules.max_lag} forbids training on it"
                )

    def trained(self, lease: Lease) -> None:
        """The optimizer has used the lease; its ordinals belong to the weights from now on."""
        self.ledger.add(lease.ordinals + lease.passed, lease.version + 1)
        self.stats.trained += len(lease.ordinals)

    def release(self, lease: Lease) -> None:
        """The weights trained on the lease are published: its slots open again. Raises StreamError the second time."""
        if lease.released:
            raise StreamError(f"the lease of ordinals {lease.ordinals} was released twice")
        lease.released = True
        self.free += 0 if lease.opened else len(lease.ordinals)
        lease.opened = True
        self.published = max(self.published, lease.version + 1)

    def acknowledge(self) -> None:
        """A checkpoint holds every trained lease: forget their groups, once their slots are open."""
        self._leases = [lease for lease in self._leases if not lease.opened or lease.ordinals[0] not in self.ledger]

    def restore(self, kept: State) -> None:
        """The learner died and goes on from ``kept``, the ledger of its checkpoint: later leases are given out again.

        Raises:
            StreamError: the checkpoint is older than one whose leases were acknowledged and forgotten.
        """
        before = Ledger()
        before.load_state(kept)
        known = sorted((*self._leases, *self._repeat), key=lambda lease: lease.version)
        repeat = [lease for lease in known if lease.ordinals[0] not in before]
        reached = repeat[0].version if repeat else self.ledger.version
        if reached > before.version:
            raise StreamError(
                f"the learner goes on from version {before.version}, but batches up to version {reached} are durable and "
                "forgotten; resume from the newest checkpoint, or start stream and learner again from this one"
            )
        self._repeat = repeat
        for lease in known:
            if lease not in self._repeat and not lease.opened:  # it was saved, but the learner died before it could say so
                self.release(lease)
            lease.released = False
        self._leases, self.ledger = [], before

    def describe(self) -> str:
        """Where groups are, for the message of a wait that was too long."""
        ready = sum(map(self._is_ready, self.entries.values()))
        at = [(ordinal, entry.makers) for ordinal, entry in self.entries.items() if not self._is_ready(entry)]
        makers = sorted({f"{who} ({column})" for _, held in at for column, who in held.items() if who})
        named = f", with {', '.join(makers)}" if makers else ""
        return f"{ready} groups are ready, {len(at)} in flight (ordinals {[ordinal for ordinal, _ in at[:5]]}…){named}"

    # ---- a new stream for an old run

    def load_state(self, state: State) -> None:
        """Everything that is not in the ledger is started again."""
        self.ledger.load_state(state)
        self._next, self.published = self.ledger.floor, self.ledger.version


def _why(group: Group) -> str:
    """What a group without signal looks like, in the words of an error."""
    errors = [sample.error for sample in group.samples if sample.error]
    rewards = [sample.reward for sample in group.samples if sample.valid and sample.reward is not None]
    if len(set(rewards)) == 1:
        return f"all rewards were {rewards[0]:g}"
    return f"{len(errors)} of {len(group.samples)} samples failed: {errors[0]}" if errors else "nothing could be learned"
