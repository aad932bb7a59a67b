"""Several processes vote on one store and are killed at random moments: nothing acknowledged is lost, nothing counts twice."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from feedback_examples import PLAIN, enrol, pair, vote

from penstock.feedback.errors import AlreadyAnswered, NotAllowed, SeatTaken
from penstock.feedback.records import JUDGEMENTS
from penstock.feedback.store import Store

WORKERS, OVERLAP, KILLS, TASKS_A_KILL = 4, 3, 24, 6
TASKS = TASKS_A_KILL * (KILLS + 1)
POLICY = replace(PLAIN, lease_seconds=0.5)
DEADLINE = 900.0
"""Seconds for what takes half a minute on a quiet machine: every kill is followed by the start of a process."""


def work(place: str, name: str, folder: Path, seed: int) -> None:
    """Vote until no task is open. What is about to be sent is noted before it, what was acknowledged after it."""
    rng, store = random.Random(seed), Store.open(place, POLICY)
    intents, acknowledged = (
        os.open(folder / f"{name}.{what}", os.O_CREAT | os.O_APPEND | os.O_RDWR) for what in ("intents", "acknowledged")
    )

    def send(task: str, key: str, preference: int) -> None:
        sequence = store.submit(vote(task, name, key, preference)).sequence
        os.write(acknowledged, f"{key} {sequence}\n".encode())

    def anew(task: str) -> None:
        key, preference = f"{name}:{task}:{os.urandom(4).hex()}", rng.randint(-3, 3)
        os.write(intents, f"{task} {key} {preference}\n".encode())
        for _ in range(rng.choice([1, 1, 2])):  # a browser that sends again
            send(task, key, preference)

    # After a crash: send again what may or may not have arrived.
    written = (folder / f"{name}.intents").read_text().splitlines()
    if written:
        task, key, preference = written[-1].split()
        with suppress(AlreadyAnswered, NotAllowed, SeatTaken):
            send(task, key, int(preference))
    while store.counts()["ask"].open:
        leases = store.held(name) or [lease for lease in [store.next_task(name)] if lease]
        for lease in leases:
            try:
                anew(lease.task)
            except SeatTaken:  # the lease expired and others have the seats; there may be nothing to undo
                continue
            if rng.random() < 0.1:
                key = f"{name}:undo:{os.urandom(4).hex()}"
                os.write(acknowledged, f"{key} {store.undo(name, key).sequence}\n".encode())
        if not leases:
            time.sleep(0.02)
    store.close()


def add_tasks(store: Store, part: int) -> None:
    """New work before every kill, so that there is always somebody voting."""
    store.ask([pair(f"{part}/{number}", overlap=OVERLAP) for number in range(TASKS_A_KILL)])


@pytest.mark.timeout(DEADLINE + 60)
def test_no_vote_is_lost_or_doubled_when_voters_are_killed(place, tmp_path):
    with Store.open(place, POLICY) as store:
        names = [f"voter{number}" for number in range(WORKERS)]
        enrol(store, *names)
        add_tasks(store, 0)
    rng, context = random.Random(0), multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["penstock.feedback.store", "feedback_examples"])  # imports of a second

    def start(name: str) -> multiprocessing.process.BaseProcess:
        process = context.Process(target=work, args=(place, name, tmp_path, rng.randrange(10**9)), daemon=True)
        process.start()
        return process

    def said(name: str) -> list[list[str]]:
        file = tmp_path / f"{name}.acknowledged"
        return [line.split() for line in file.read_text().splitlines()] if file.exists() else []

    running = {name: start(name) for name in names}
    killed, added, deadline = 0, 0, time.monotonic() + DEADLINE
    try:
        while killed < KILLS:
            assert time.monotonic() < deadline
            name = rng.choice(names)
            before = said(name)
            if added == killed:
                added += 1
                with Store.open(place, POLICY) as store:
                    add_tasks(store, added)
            while said(name) == before and running[name].exitcode is None and time.monotonic() < deadline:
                running[name].join(0.01)
            running[name].join(rng.uniform(0.0, 0.1))
            assert running[name].exitcode in (None, 0), f"{name} failed"
            if running[name].exitcode is None:
                with suppress(ProcessLookupError):  # it may have ended since it was looked at
                    os.kill(running[name].pid or 0, signal.SIGKILL)
                    killed += 1
            running[name].join()
            running[name] = start(name)
        for name in names:  # who had found nothing to do, before the last tasks were added, is needed for them
            if running[name].exitcode is not None:
                assert running[name].exitcode == 0, f"{name} failed"
                running[name] = start(name)
        for name, process in running.items():
            process.join(max(0.0, deadline - time.monotonic()))
            assert process.exitcode == 0, f"{name} did not finish"
    finally:
        for process in running.values():
            process.kill()
            process.join()

    with Store.open(place, POLICY) as store:
        events, counts = store.events(), store.counts()["ask"]
        state = store.verify()
    assert counts.judgements == TASKS * OVERLAP
    assert len(state.judgements()) == TASKS * OVERLAP
    sequences = {event.key: event.sequence for event in events}
    assert len(sequences) == len(events), "no key twice"
    lines = [line for name in names for line in said(name)]
    assert len(lines) >= KILLS, "each voter that was killed had voted before"
    assert [line for line in lines if sequences.get(line[0]) != int(line[1])] == [], "every acknowledged event is in the log"
    seats, by_sequence = Counter[str](), {event.sequence: event for event in events}
    for event in events:
        change = 1 if event.kind in JUDGEMENTS else -1 if by_sequence[event.target].kind in JUDGEMENTS else 0
        seats[event.task] += change
        assert seats[event.task] <= OVERLAP
