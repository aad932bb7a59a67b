"""What a lease and a vote cost the feedback store, without the service: CPU, rate and waiting, by the number of threads.

    python benchmarks/feedback_verbs.py [--store postgresql] [--votes 3200]

10,000 open tasks, 400 gold ones, 200 annotators. The CPU is this process's alone; PostgreSQL's own comes on top.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from private_postgresql import private_postgresql

from penstock.feedback.records import Annotator, Item, Response, Submission, Task
from penstock.feedback.store import Store

PEOPLE, TASKS, GOLD = 200, 10_000, 400


def pair(name: object) -> Item:
    return Item(f"prompt {name}", (Response(f"first {name}"), Response(f"second {name}")))


def fill(store: Store) -> None:
    for number in range(PEOPLE):
        store.enrol(Annotator(f"person{number}"))
    store.ask([Task(item=pair(number)) for number in range(TASKS)])
    store.ask([Task(item=pair(f"gold {n}"), purpose="gold", overlap=0, gold={"preference": 1}) for n in range(GOLD)])


def vote(store: Store, threads: int, votes: int) -> str:
    """Lease and vote from so many threads; what it cost, in words."""
    seconds: list[float] = []

    def work(thread: int) -> None:
        for number in range(thread, votes, threads):
            who, began = f"person{number % PEOPLE}", time.perf_counter()
            lease = store.next_task(who)
            assert lease is not None
            leased = time.perf_counter()
            store.submit(Submission("vote", lease.task, who, f"{threads}/{number}", {"preference": number % 7 - 3}))
            seconds.extend((leased - began, time.perf_counter() - leased))

    cpu, began = time.process_time(), time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))
    cpu, took = time.process_time() - cpu, time.perf_counter() - began
    seconds.sort()
    p50, p95 = (seconds[int(len(seconds) * share)] * 1000 for share in (0.5, 0.95))
    rate, each = votes / took, cpu / votes * 1000
    return f"{threads:3} threads: {rate:4.0f} leases with votes/s, {each:.2f} ms CPU each, verbs p50 {p50:.1f} p95 {p95:.1f} ms"


@contextmanager
def place(kind: str) -> Iterator[str]:
    if kind == "postgresql":
        with private_postgresql() as (url, _):
            yield url
    else:
        with tempfile.TemporaryDirectory(prefix="penstock-verbs-") as folder:
            yield str(Path(folder) / "feedback.db")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("--votes", type=int, default=3200)
    given = parser.parse_args()
    with place(given.store) as where, Store.open(where) as store:
        fill(store)
        for threads in (1, 4, 16):
            print(vote(store, threads, given.votes), flush=True)
        store.verify()


if __name__ == "__main__":
    main()
