"""A world around the gate under a virtual clock: workers and a learner that move in any order and die.

What moves next is chosen by chance, each actor at a speed of its own that changes now and then, so that there are stragglers.
The rules that the actors keep are those of the real ones: a generator loads published versions whenever it likes but never goes
back, and begins no group below the version that its ticket asks for; the learner goes through lease, train, publish, save and
release, and goes on from its last checkpoint when it dies between any two of these.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from stream_examples import generated

from penstock.core.types import Group, Version
from penstock.stream.enrichment import changes
from penstock.stream.entry import Ticket
from penstock.stream.gate import MAX_FAILED_OWNERS, Gate, Ledger
from penstock.stream.leases import Lease
from penstock.stream.rules import Rules
from penstock.stream.staleness import PATIENCE
from penstock.stream.weight_registry import WeightRegistry

Move = Callable[[], None]

CAPACITY = 3
"""Groups that a generator or a worker of a step has in flight at most."""

SPEEDS = (0.02, 0.3, 1.0, 1.0)


def length(ordinal: int) -> int:
    """Tokens of a group."""
    return 1 + ordinal * 7 % 5


def scored_by(step: str, group: Group) -> Group:
    """What a worker makes of a group: the step's name in its extras, and the ordinal as its reward."""
    samples = tuple(
        replace(one.scored(float(group.key.ordinal)), extras={**one.extras, step: group.key.ordinal}) for one in group.samples
    )
    return replace(group, samples=samples)


def ages(group: Group, version: Version) -> list[int]:
    """Of every token to be trained on, how many versions it is older than ``version``."""
    return [version - int(drawn_by) for one in group.samples for drawn_by in one.version_T[one.action_T]]


def identity(lease: Lease) -> tuple[object, ...]:
    """What has to be the same when a batch is leased again."""
    held = [[(one.version_T.tolist(), one.action_T.tolist()) for one in group.samples] for group in lease.groups + lease.reused]
    return lease.ordinals, lease.filtered, [group.key for group in lease.groups + lease.reused], held


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
        groups = lease.groups + lease.reused
        assert len(groups) == self.rules.batch
        assert all(0 <= age <= self.rules.max_lag for group in groups for age in ages(group, self.version))
        assert all(group.key.ordinal == ordinal for ordinal, group in zip(lease.ordinals, lease.groups, strict=True))
        assert self.known.setdefault(self.version, identity(lease)) == identity(lease)
        for step in self.rules.enrichment:
            assert all(one.extras[step.name] == group.key.ordinal for group in groups for one in group.samples)

    def add(self, lease: Lease) -> None:
        """A lease that was trained."""
        earlier = {ordinal for before in self.leases for ordinal in before.ordinals}
        self.leases.append(lease)
        consumed = [ordinal for before in self.leases for ordinal in before.ordinals + before.filtered]
        assert len(set(consumed)) == len(consumed)
        again = Counter(group.key.ordinal for before in self.leases for group in before.reused)
        assert all(count < self.rules.max_uses for count in again.values())
        assert {group.key.ordinal for group in lease.reused} <= earlier
        if self.rules.on_stale == "wait":
            everything = [ordinal for before in self.leases for ordinal in before.ordinals]
            assert everything == sorted(everything)

    def consumed(self) -> set[int]:
        return {ordinal for lease in self.leases for ordinal in lease.ordinals + lease.filtered}


@dataclass(eq=False)
class Worker:
    """A generator (``step`` empty) or the worker of an enrichment step."""

    name: str
    step: str = ""
    version: Version = -1
    fetched: Version = -1
    heard: tuple[int, Version] = (-1, -1)
    """The manifest that it has heard of, by its learner's start and its version."""
    held: dict[Ticket, list[Version]] = field(default_factory=dict)
    """Of a generator: the versions that drew each group's tokens so far."""
    taken: dict[Ticket, Group] = field(default_factory=dict)
    """Of the worker of a step."""


class World:
    """Everyone around one gate.

    ``every`` is how many steps lie between checkpoints. Published weights die with the learner that published them; its
    successor publishes those of its checkpoint first and then catches up.
    """

    def __init__(self, rules: Rules, generators: int, every: int, chance: random.Random) -> None:
        self.rules, self.every, self.chance = rules, every, chance
        self.gate, self.history = Gate(rules), History(rules)
        self.registry = WeightRegistry(0.0)
        self.epoch = 0
        self.ledger: Mapping[str, Any] = Ledger().values()
        self.saved: tuple[Mapping[str, Any], int] = (self.ledger, 0)
        self.lease: Lease | None = None
        self.phase = self.take_lease
        self.unopened: dict[Version, int] = {}
        self.admitted: set[int] = set()
        self.late: list[Callable[[], bool]] = []
        """What dead generators had sent before they died and arrives now."""
        self.born = 0
        self.workers = [self.worker("") for _ in range(generators)]
        self.workers += [self.worker(step.name) for step in rules.enrichment for _ in range(2)]
        self.deaths_left, self.learner_deaths_left, self.ends_left = MAX_FAILED_OWNERS - 1, 6, 2
        self.speeds: dict[str, float] = {}
        self.announce(0)

    def worker(self, step: str) -> Worker:
        self.born += 1
        return Worker(f"{step or 'generator'} {self.born}", step)

    def announce(self, version: Version) -> None:
        """The learner's weights can be fetched as long as it lives."""
        asyncio.run(self.registry.announce({"kind": "model", "learner_epoch": self.epoch, "version": version}))

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
        for worker in self.workers:
            for move in self.step_moves(worker) if worker.step else self.generator_moves(worker):
                yield worker.name, move
        if self.late:
            yield "network", self.arrive_late

    def deaths(self) -> Iterator[Move]:
        if self.deaths_left:
            yield from (lambda worker=worker: self.lose(worker) for worker in self.workers)
        if self.learner_deaths_left:
            yield self.lose_learner
        if self.ends_left:
            yield self.lose_everything

    # ---- generators

    def generator_moves(self, one: Worker) -> Iterator[Move]:
        if self.registry.order > one.heard:
            yield lambda: self.fetch(one)
        if one.fetched > one.version:
            yield lambda: setattr(one, "version", one.fetched)
        if one.version >= 0 and self.gate.may_admit(one.name) and len(one.held) < CAPACITY:
            yield lambda: self.admit(one)
        if self.gate.revoked.get(one.name):
            yield lambda: self.hear(one)
        for ticket, versions in one.held.items():
            if len(versions) == length(ticket.ordinal):
                yield lambda ticket=ticket: self.put(one, ticket)
            elif versions or one.version >= ticket.min_version:
                yield lambda versions=versions: versions.append(one.version)

    def fetch(self, one: Worker) -> None:
        """The weights of a learner that is gone are gone, and a generator never goes back."""
        one.heard = epoch, version = self.registry.order
        if epoch == self.epoch and version > one.version:
            one.fetched = version

    def admit(self, one: Worker) -> None:
        for ticket in self.gate.admit(one.name, CAPACITY - len(one.held)):
            assert ticket not in one.held
            assert ticket.ordinal not in self.history.consumed()
            one.held[ticket] = []
            self.admitted.add(ticket.ordinal)

    def put(self, one: Worker, ticket: Ticket) -> None:
        wanted = self.gate.put(one.name, ticket, generated(ticket.ordinal, one.held.pop(ticket)))
        assert wanted or self.rules.on_stale == "drop"

    def hear(self, one: Worker) -> None:
        for ticket in self.gate.revoked.pop(one.name):
            one.held.pop(ticket, None)

    # ---- enrichment

    def step_moves(self, one: Worker) -> Iterator[Move]:
        if self.gate.enrichment.waiting(one.step) and len(one.taken) < CAPACITY:
            yield lambda: self.take(one)
        for ticket in one.taken:
            yield lambda ticket=ticket: self.write(one, ticket)

    def take(self, one: Worker) -> None:
        (step,) = (step for step in self.rules.enrichment if step.name == one.step)
        for ticket, group in self.gate.take(one.name, one.step, CAPACITY - len(one.taken)):
            assert all(name in sample.extras for name in step.inputs[1:] for sample in group.samples)
            one.taken[ticket] = group

    def write(self, one: Worker, ticket: Ticket) -> None:
        group = one.taken.pop(ticket)
        self.gate.write(one.name, ticket, one.step, changes(group, scored_by(one.step, group)))

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
        self.ledger = self.lease.ledger
        self.history.add(self.lease)
        self.phase = self.publish

    def publish(self) -> None:
        self.announce(self.history.version)
        self.phase = self.release if self.history.version % self.every else self.save

    def save(self) -> None:
        self.saved = self.ledger, self.history.version
        self.phase = self.release

    def release(self) -> None:
        assert self.lease is not None
        self.gate.release(self.lease.number, saved=self.saved[1])
        self.unopened.pop(self.lease.version, None)
        self.phase = self.take_lease

    # ---- deaths

    def lose(self, worker: Worker) -> None:
        """It dies and another one takes its place; what it had sent arrives now or later, or never."""
        self.deaths_left -= 1
        self.gate.release_owner(worker.name)
        self.workers[self.workers.index(worker)] = self.worker(worker.step)
        for ticket, versions in worker.held.items():
            group = generated(ticket.ordinal, versions or [0])
            self.late.append(lambda ticket=ticket, group=group: self.gate.put(worker.name, ticket, group))

    def arrive_late(self) -> None:
        assert self.late.pop(self.chance.randrange(len(self.late)))() is False

    def lose_learner(self) -> None:
        self.learner_deaths_left -= 1
        ledger, version = self.resume()
        self.unopened = {leased: count for leased, count in self.unopened.items() if leased >= version}
        self.gate.restore(ledger)

    def lose_everything(self) -> None:
        """The whole run is started again from the last checkpoint: a new stream, and everyone new around it."""
        self.ends_left -= 1
        ledger, version = self.resume()
        self.gate, self.late, self.unopened = Gate(self.rules, ledger), [], {}
        self.workers = [self.worker(worker.step) for worker in self.workers]
        self.admitted = self.history.consumed()
        self.history.known = {leased: known for leased, known in self.history.known.items() if leased < version}

    def resume(self) -> tuple[Mapping[str, Any], Version]:
        """A learner of the last checkpoint. A generator that starts from now on finds weights that it can fetch."""
        self.ledger, version = self.saved
        del self.history.leases[version:]
        self.lease, self.phase = None, self.take_lease
        self.epoch += 1
        self.announce(version)
        newcomer = self.worker("")
        self.fetch(newcomer)
        assert newcomer.fetched == version
        return self.ledger, version

    # ---- what holds at any time, and at the end

    def is_between_batches(self, goal: Version) -> bool:
        """Whether at least ``goal`` batches are trained and the slots of the last one are open."""
        return self.history.version >= goal and self.phase == self.take_lease

    def check_slots(self) -> None:
        """None leaks, and no more is revoked from a worker than it has in flight.

        No group starves: once one was started again too often, batches go in order until it is trained.
        """
        most = PATIENCE + -(-self.rules.slots // self.rules.fresh)
        assert all(entry.stale_restarts <= most for entry in self.gate.entries.values())
        assert all(len(tickets) <= CAPACITY for tickets in self.gate.revoked.values())
        assert self.gate.free >= 0
        assert self.gate.free + len(self.gate.entries) + sum(self.unopened.values()) == self.rules.slots

    def check_end(self) -> None:
        """Nothing is lost; when all are gone, whoever comes is given exactly the slots."""
        there = self.history.consumed() | set(self.gate.entries) | set(self.gate.filter.reasons)
        assert self.admitted == there == set(range(len(self.admitted)))
        for worker in self.workers:
            self.gate.release_owner(worker.name)
        self.gate.admit("the last one", 10**6)
        assert len(self.gate.entries) == self.rules.slots
        assert np.all([entry.owners or entry.group for entry in self.gate.entries.values()])
