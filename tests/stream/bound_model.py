"""A world around the gate under a virtual clock: generators, stage workers and a learner that move in any order and die.

What moves next is drawn by chance, each actor at a speed of its own that changes now and then, so that there are stragglers.
The rules that the actors keep are those of the real ones: a generator loads published versions whenever it likes but never goes
back, and begins no group below the floor of its ticket; the learner goes through lease, train, publish, save, acknowledge
and release, and goes on from its last checkpoint when it dies between any two of these.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from flow_examples import drawn

from penstock.core.contracts import State
from penstock.core.types import Group, Version
from penstock.stream.columns import changes
from penstock.stream.gate import Gate
from penstock.stream.ledger import Ledger
from penstock.stream.rules import DEATHS, PATIENCE, Lease, Rules, Ticket

Move = Callable[[], None]

CAPACITY = 3
"""Groups that a generator or a stage worker has in hand at most."""

SPEEDS = (0.02, 0.3, 1.0, 1.0)


def length(ordinal: int) -> int:
    """Tokens of a group."""
    return 1 + ordinal * 7 % 5


def scored_by(stage: str, group: Group) -> Group:
    """What a worker makes of a group: the stage's name in its extras, and the ordinal as its reward."""
    samples = tuple(
        replace(one.scored(float(group.key.ordinal)), extras={**one.extras, stage: group.key.ordinal}) for one in group.samples
    )
    return replace(group, samples=samples)


def ages(group: Group, version: Version) -> list[int]:
    """Of every token to be trained on, how many versions it is older than ``version``."""
    return [version - int(drawn_by) for one in group.samples for drawn_by in one.version_T[one.action_T]]


def identity(lease: Lease) -> tuple[object, ...]:
    """What has to be the same when a batch is leased again."""
    held = [[(one.version_T.tolist(), one.action_T.tolist()) for one in group.samples] for group in lease.groups + lease.again]
    return lease.ordinals, lease.passed, [group.key for group in lease.groups + lease.again], held


class History:
    """The batches that the surviving weights were trained on, and what has to hold of them."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.leases: list[Lease] = []
        self.known: dict[Version, tuple[object, ...]] = {}

    @property
    def version(self) -> Version:
        return len(self.leases)

    def check(self, lease: Lease) -> None:
        """A lease that was just handed out."""
        groups = lease.groups + lease.again
        assert len(groups) == self.rules.batch
        assert all(0 <= age <= self.rules.max_lag for group in groups for age in ages(group, self.version))
        assert all(group.key.ordinal == ordinal for ordinal, group in zip(lease.ordinals, lease.groups, strict=True))
        assert self.known.setdefault(self.version, identity(lease)) == identity(lease)
        for stage in self.rules.stages:
            assert all(one.extras[stage.name] == group.key.ordinal for group in groups for one in group.samples)

    def add(self, lease: Lease) -> None:
        """A lease that was trained."""
        earlier = {ordinal for before in self.leases for ordinal in before.ordinals}
        self.leases.append(lease)
        consumed = [ordinal for before in self.leases for ordinal in before.ordinals + before.passed]
        assert len(set(consumed)) == len(consumed)
        again = Counter(group.key.ordinal for before in self.leases for group in before.again)
        assert all(count < self.rules.max_uses for count in again.values())
        assert {group.key.ordinal for group in lease.again} <= earlier
        if self.rules.on_stale == "wait":
            everything = [ordinal for before in self.leases for ordinal in before.ordinals]
            assert everything == sorted(everything)

    def consumed(self) -> set[int]:
        return {ordinal for lease in self.leases for ordinal in lease.ordinals + lease.passed}


@dataclass(eq=False)
class Maker:
    """A generator (``stage`` empty) or the worker of a stage."""

    name: str
    stage: str = ""
    version: Version = -1
    fetched: Version = -1
    held: dict[Ticket, list[Version]] = field(default_factory=dict)
    """Of a generator: the versions that drew each group's tokens so far."""
    taken: dict[Ticket, Group] = field(default_factory=dict)
    """Of a stage worker."""


class World:
    """Everyone around one gate.

    ``every`` is how many steps lie between checkpoints. A ``remote`` learner keeps the ledger itself and tells the gate only
    with the release what it has trained and saved.
    """

    def __init__(self, rules: Rules, generators: int, every: int, remote: bool, chance: random.Random) -> None:
        self.rules, self.every, self.remote, self.chance = rules, every, remote, chance
        self.gate, self.history = Gate(rules), History(rules)
        self.board: Version = 0
        self.ledger = Ledger()
        self.saved: tuple[State, int] = (self.ledger.state(), 0)
        self.lease: Lease | None = None
        self.phase = self.take_lease
        self.unopened: dict[Version, int] = {}
        self.admitted: set[int] = set()
        self.late: list[Callable[[], bool]] = []
        """What dead generators had sent before they died and arrives now."""
        self.born = 0
        self.makers = [self.maker("") for _ in range(generators)]
        self.makers += [self.maker(stage.name) for stage in rules.stages for _ in range(2)]
        self.deaths_left, self.learner_deaths_left, self.ends_left = DEATHS - 1, 6, 2
        self.speeds: dict[str, float] = {}

    def maker(self, stage: str) -> Maker:
        self.born += 1
        return Maker(f"{stage or 'generator'} {self.born}", stage)

    # ---- time

    def step(self, mishaps: float) -> None:
        """One move of anyone; with a chance of ``mishaps`` a death instead."""
        if self.chance.random() < 0.03:
            self.speeds.clear()
        deaths = list(self.deaths()) if self.chance.random() < mishaps else []
        if deaths:
            self.chance.choice(deaths)()
        else:
            moves = list(self.moves())
            weights = [self.speeds.setdefault(who, self.chance.choice(SPEEDS)) for who, _ in moves]
            self.chance.choices(moves, weights)[0][1]()
        self.check_slots()

    def moves(self) -> Iterator[tuple[str, Move]]:
        yield "learner", self.phase
        for maker in self.makers:
            for move in self.stage_moves(maker) if maker.stage else self.generator_moves(maker):
                yield maker.name, move
        if self.late:
            yield "network", self.arrive_late

    def deaths(self) -> Iterator[Move]:
        if self.deaths_left:
            yield from (lambda maker=maker: self.lose(maker) for maker in self.makers)
        if self.learner_deaths_left:
            yield self.lose_learner
        if self.ends_left:
            yield self.lose_everything

    # ---- generators

    def generator_moves(self, one: Maker) -> Iterator[Move]:
        if self.board > one.fetched:
            yield lambda: setattr(one, "fetched", self.board)
        if one.fetched > one.version:
            yield lambda: setattr(one, "version", one.fetched)
        if self.gate.open and len(one.held) < CAPACITY:
            yield lambda: self.admit(one)
        if self.gate.withdrawn.get(one.name):
            yield lambda: self.hear(one)
        for ticket, versions in one.held.items():
            if len(versions) == length(ticket.ordinal):
                yield lambda ticket=ticket: self.put(one, ticket)
            elif versions or one.version >= ticket.floor:
                yield lambda versions=versions: versions.append(one.version)

    def admit(self, one: Maker) -> None:
        for ticket in self.gate.admit(one.name, CAPACITY - len(one.held)):
            assert ticket not in one.held
            assert ticket.ordinal not in self.history.consumed()
            one.held[ticket] = []
            self.admitted.add(ticket.ordinal)

    def put(self, one: Maker, ticket: Ticket) -> None:
        wanted = self.gate.put(ticket, drawn(ticket.ordinal, one.held.pop(ticket)))
        assert wanted or self.rules.on_stale == "drop"

    def hear(self, one: Maker) -> None:
        for ticket in self.gate.withdrawn.pop(one.name):
            one.held.pop(ticket, None)

    # ---- stages

    def stage_moves(self, one: Maker) -> Iterator[Move]:
        if self.gate.wanted(one.stage) and len(one.taken) < CAPACITY:
            yield lambda: self.take(one)
        for ticket in one.taken:
            yield lambda ticket=ticket: self.write(one, ticket)

    def take(self, one: Maker) -> None:
        (stage,) = (stage for stage in self.rules.stages if stage.name == one.stage)
        for ticket, group in self.gate.take(one.stage, one.name, CAPACITY - len(one.taken)):
            assert all(name in sample.extras for name in stage.inputs[1:] for sample in group.samples)
            one.taken[ticket] = group

    def write(self, one: Maker, ticket: Ticket) -> None:
        group = one.taken.pop(ticket)
        self.gate.write(ticket, one.stage, changes(group, scored_by(one.stage, group)))

    # ---- the learner

    def take_lease(self) -> None:
        self.lease = self.gate.lease(self.history.version)
        if self.lease is not None:
            if self.history.version not in self.history.known:
                self.unopened[self.history.version] = len(self.lease.ordinals)
            self.history.check(self.lease)
            self.phase = self.train

    def train(self) -> None:
        assert self.lease is not None
        self.ledger.add(self.lease.ordinals + self.lease.passed, self.history.version + 1)
        self.history.add(self.lease)
        if not self.remote:
            self.gate.trained(self.lease)
        self.phase = self.publish

    def publish(self) -> None:
        self.board = max(self.board, self.history.version)
        self.phase = self.release if self.history.version % self.every else self.save

    def save(self) -> None:
        self.saved = self.ledger.state(), self.history.version
        self.phase = self.release if self.remote else self.acknowledge

    def acknowledge(self) -> None:
        self.gate.acknowledge()
        self.phase = self.release

    def release(self) -> None:
        assert self.lease is not None
        if self.remote:
            self.gate.trained(self.lease)
            if self.saved[1] == self.history.version:
                self.gate.acknowledge()
        self.gate.release(self.lease)
        self.unopened.pop(self.lease.version, None)
        self.phase = self.take_lease

    # ---- deaths

    def lose(self, maker: Maker) -> None:
        """It dies and another one takes its place; what it had sent arrives now or later, or never."""
        self.deaths_left -= 1
        self.gate.leave(maker.name)
        self.makers[self.makers.index(maker)] = self.maker(maker.stage)
        for ticket, versions in maker.held.items():
            group = drawn(ticket.ordinal, versions or [0])
            self.late.append(lambda ticket=ticket, group=group: self.gate.put(ticket, group))

    def arrive_late(self) -> None:
        assert self.late.pop(self.chance.randrange(len(self.late)))() is False

    def lose_learner(self) -> None:
        self.learner_deaths_left -= 1
        state, version = self.resume()
        self.unopened = {leased: count for leased, count in self.unopened.items() if leased >= version}
        self.gate.restore(state)

    def lose_everything(self) -> None:
        """The whole run is started again from the last checkpoint: a new stream, and everyone new around it."""
        self.ends_left -= 1
        state, version = self.resume()
        self.gate, self.board, self.late, self.unopened = Gate(self.rules), version, [], {}
        self.gate.load_state(state)
        self.makers = [self.maker(maker.stage) for maker in self.makers]
        self.admitted = self.history.consumed()
        self.history.known = {leased: known for leased, known in self.history.known.items() if leased < version}

    def resume(self) -> tuple[State, Version]:
        """A learner of the last checkpoint."""
        state, version = self.saved
        del self.history.leases[version:]
        self.ledger.load_state(state)
        self.lease, self.phase = None, self.take_lease
        return state, version

    # ---- what holds at any time, and at the end

    def is_between_batches(self, goal: Version) -> bool:
        """Whether at least ``goal`` batches are trained and the slots of the last one are open."""
        return self.history.version >= goal and self.phase == self.take_lease

    def check_slots(self) -> None:
        """None leaks, and no more is withdrawn from anyone than it has in hand.

        No group starves: once one was started again too often, batches go in order until it is trained.
        """
        most = PATIENCE + -(-self.rules.slots // self.rules.fresh)
        assert all(entry.withdrawals <= most for entry in self.gate.entries.values())
        assert all(len(tickets) <= CAPACITY for tickets in self.gate.withdrawn.values())
        assert self.gate.free >= 0
        assert self.gate.free + len(self.gate.entries) + sum(self.unopened.values()) == self.rules.slots

    def check_end(self) -> None:
        """Nothing is lost; when all are gone, whoever comes is given exactly the slots."""
        there = self.history.consumed() | set(self.gate.entries) | set(self.gate.passed)
        assert self.admitted == there == set(range(len(self.admitted)))
        for maker in self.makers:
            self.gate.leave(maker.name)
        self.gate.admit("the last one", 10**6)
        assert len(self.gate.entries) == self.rules.slots
        assert np.all([entry.makers or entry.group for entry in self.gate.entries.values()])
