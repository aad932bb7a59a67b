"""The gate's first half: who draws which group, who writes which column, and what goes back when they are gone.

Nothing in here waits; :class:`penstock.stream.gate.Gate` adds the batches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from penstock.core.errors import StreamError
from penstock.core.types import Group, Version
from penstock.stream.columns import TOKENS, Change, merged, without_signal
from penstock.stream.ledger import Ledger
from penstock.stream.rules import DEATHS, UNLIMITED, Entry, Rules, StreamStats, Ticket


class Admission:
    """Admits work by slots and gathers the columns of groups. Every verb answers at once."""

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
        self.passed[ordinal] = without_signal(group)
        self.stats.passed += 1
        if len(self.passed) <= self.rules.dynamic_sampling * self.rules.slots:
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

    def _start_over(self, entry: Entry, withdrawals: int) -> None:
        """The group is drawn again from the start; what comes of this attempt is refused."""
        ticket = entry.ticket._replace(attempt=entry.ticket.attempt + 1)
        self.entries[ticket.ordinal] = Entry(ticket, withdrawals=withdrawals, lost=entry.lost)
        self._idle.add(ticket.ordinal)
        for lacking in self._lacking.values():
            lacking.pop(ticket.ordinal, None)

    def _refuse_poison(self) -> None:
        suspects = [entry for entry in self.entries.values() if len(entry.lost) >= DEATHS]
        if suspects:
            ordinals, lost = [entry.ticket.ordinal for entry in suspects], suspects[0].lost
            named = f"the group of ordinal {ordinals[0]}" if len(ordinals) == 1 else f"one of the groups of ordinals {ordinals}"
            raise StreamError(
                f"{named} took down {len(lost)} of its makers in a row, the last one {lost[-1]}; see why that ended, "
                "or leave the prompt out"
            )
