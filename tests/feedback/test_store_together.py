"""Several processes and threads on one store at once: opening it, and filling seats."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ThreadPoolExecutor

import pytest
from feedback_examples import PLAIN, enrol, pair, vote

from penstock.feedback.errors import FeedbackError
from penstock.feedback.store import Store


def open_and_enrol(place: str, name: str) -> None:
    with Store.open(place, PLAIN) as store:
        enrol(store, name)


def test_processes_that_open_a_new_store_at_once_make_it_once(new_place):
    names = [f"p{number}" for number in range(5)]
    running = [multiprocessing.get_context("spawn").Process(target=open_and_enrol, args=(new_place, name)) for name in names]
    for process in running:
        process.start()
    for process in running:
        process.join(60)
        assert process.exitcode == 0
    with Store.open(new_place, PLAIN) as store:
        assert [annotator.name for annotator in store.annotators()] == names


def test_threads_share_one_store_and_fill_every_seat_once(either):
    people = [f"t{number}" for number in range(6)]
    enrol(either, *people)
    either.ask([pair(str(number), overlap=3) for number in range(8)])

    def vote_till_the_end(name: str) -> int:
        count = 0
        while lease := either.next_task(name):
            either.submit(vote(lease.task, name, f"{name}:{lease.task}"))
            count += 1
        return count

    with ThreadPoolExecutor(len(people)) as pool:
        voted = sum(pool.map(vote_till_the_end, people))
    # Who finds every seat taken by leases leaves; the others' votes are all there.
    assert voted == len(either.verify().judgements()) == either.counts()["ask"].judgements <= 24


def test_a_place_that_cannot_be_is_refused(tmp_path):
    with pytest.raises(FeedbackError, match="there is no folder"):
        Store.open(tmp_path / "none" / "f.db")
    with pytest.raises(FeedbackError, match="no such store"):
        Store.open("mysql://somewhere/x")
