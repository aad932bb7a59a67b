"""Random interleavings of annotators, leases that expire, undo, double submits and retracts against a plain-Python model."""

from __future__ import annotations

import itertools
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from feedback_examples import PLAIN, HandClock, enrol, pair, vote
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.feedback import errors
from penstock.feedback.records import Submission
from penstock.feedback.store import Store

PEOPLE = ("ann", "bob", "cleo", "dan")
OVERLAPS = (1, 2, 3)
LEASE = 60

people = st.sampled_from(PEOPLE)
tasks = st.integers(0, len(OVERLAPS) - 1)


class Seats(RuleBasedStateMachine):
    """The model keeps who is done with what, who holds what until when, and the expected log, in lists and dictionaries."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = HandClock()
        self.folder = tempfile.TemporaryDirectory()
        self.store = Store.open(Path(self.folder.name) / "f.db", replace(PLAIN, lease_seconds=LEASE, held=3), self.clock)
        self.done: dict[tuple[int, str], tuple[int, str]] = {}
        self.leases: dict[tuple[int, str], float] = {}
        self.log: list[tuple[str, int]] = []
        self.alive: dict[int, tuple[int, str, str]] = {}
        self.keys = itertools.count()

    @initialize()
    def begin(self) -> None:
        enrol(self.store, *PEOPLE)
        enrol(self.store, "root", role="admin")
        self.names = self.store.ask([pair(str(n), overlap=overlap) for n, overlap in enumerate(OVERLAPS)])

    def taken(self, task: int, beside: str) -> int:
        judged = sum(1 for (t, _), (_, kind) in self.done.items() if t == task and kind == "vote")
        held = sum(1 for (t, who), deadline in self.leases.items() if t == task and who != beside and deadline > self.clock())
        return judged + held

    def free(self, task: int, who: str) -> bool:
        return (task, who) not in self.done and self.taken(task, who) < OVERLAPS[task]

    @rule(seconds=st.sampled_from([1, 25, LEASE]))
    def time_passes(self, seconds: int) -> None:
        self.clock.seconds += seconds

    @rule(who=people)
    def next_task(self, who: str) -> None:
        held = [t for (t, w), deadline in self.leases.items() if w == who and deadline > self.clock()]
        waiting = [t for t in range(len(OVERLAPS)) if t not in held and self.free(t, who)]
        if len(held) == 3:
            with pytest.raises(errors.NotAllowed):
                self.store.next_task(who)
            return
        lease = self.store.next_task(who)
        assert (lease and lease.task) == (self.names[waiting[0]] if waiting else None)
        if waiting:
            self.leases[waiting[0], who] = self.clock() + LEASE

    @rule(who=people, task=tasks)
    def hand_out(self, who: str, task: int) -> None:
        if self.free(task, who):
            self.store.hand_out(self.names[task], who)
            self.leases[task, who] = self.clock() + LEASE
        else:
            with pytest.raises((errors.AlreadyAnswered, errors.SeatTaken)):
                self.store.hand_out(self.names[task], who)

    @rule(who=people, task=tasks)
    def give_back(self, who: str, task: int) -> None:
        self.store.give_back(self.names[task], who)
        if self.leases.get((task, who), 0) > self.clock():
            self.leases[task, who] = self.clock()

    @rule(who=people, task=tasks, kind=st.sampled_from(["vote", "vote", "skip"]), twice=st.booleans())
    def submit(self, who: str, task: int, kind: str, twice: bool) -> None:
        key = f"k{next(self.keys)}"
        given = vote(self.names[task], who, key) if kind == "vote" else Submission("skip", self.names[task], who, key)
        if not self.free(task, who) or (task, who) not in self.leases:
            with pytest.raises((errors.AlreadyAnswered, errors.SeatTaken, errors.NotAllowed)):
                self.store.submit(given)
            return
        event = self.store.submit(given)
        self.log.append((kind, 0))
        self.done[task, who] = (event.sequence, kind)
        self.alive[event.sequence] = (task, who, kind)
        del self.leases[task, who]
        if twice:
            assert self.store.submit(given) == event

    @precondition(lambda self: self.alive)
    @rule(who=people)
    def undo(self, who: str) -> None:
        mine = [sequence for sequence, (_, author, _) in self.alive.items() if author == who]
        key = f"k{next(self.keys)}"
        if not mine:
            with pytest.raises(errors.NothingToUndo):
                self.store.undo(who, key)
            return
        target = max(mine)
        task, _, kind = self.alive.pop(target)
        self.store.undo(who, key)
        self.log.append(("undo", target))
        del self.done[task, who]
        if kind == "vote" or self.taken(task, who) < OVERLAPS[task]:
            self.leases[task, who] = self.clock() + LEASE

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def retract(self, data: st.DataObject) -> None:
        target = data.draw(st.sampled_from(sorted(self.alive)))
        task, who, _ = self.alive.pop(target)
        event = self.store.retract("root", f"k{next(self.keys)}", target, "")
        self.log.append(("retract", target))
        self.done[task, who] = (event.sequence, "retract")

    @invariant()
    def seats_are_never_exceeded(self) -> None:
        for task, overlap in enumerate(OVERLAPS):
            assert self.taken(task, "") <= overlap

    def teardown(self) -> None:
        state = self.store.verify()
        assert [(event.kind, event.target) for event in self.store.events()] == self.log
        expected = {(self.names[t], who): seq for (t, who), (seq, kind) in self.done.items() if kind != "retract"}
        assert {place: event.sequence for place, event in state.standing.items()} == expected
        self.store.close()
        self.folder.cleanup()


Seats.TestCase.settings = settings(stateful_step_count=40, suppress_health_check=list(HealthCheck))


class TestSeats(Seats.TestCase):
    """Named so that it is collected once."""
