"""Small tasks, annotators, what they say of them, and a clock that moves when told."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from penstock.config.run import DataSpec
from penstock.data.sources import open_source, register_source
from penstock.feedback.exchange.snapshot import Labels, preference_pairs, snapshot
from penstock.feedback.policy import QueuePolicy
from penstock.feedback.records import Annotator, Event, Item, Response, Submission, Task
from penstock.feedback.store import Store
from penstock.product.source import open_feedback

register_source("feedback", open_feedback)

PLAIN = QueuePolicy(gold_share=0, repeat_share=0)
"""Neither gold nor repeats."""
EQUAL, SIMULATED = Labels(weights="equal"), Labels(natures=("simulated",))


class HandClock:
    """Seconds that pass only when a test says so."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def everything(spec: DataSpec, base: Path) -> list[Mapping[str, Any]]:
    """All rows of a source."""
    source = open_source(spec, base)
    return [source[index] for index in range(len(source))]


def pair(name: str = "x", **fields: object) -> Task:
    item = Item(prompt=f"prompt {name}", responses=(Response(f"first {name}"), Response(f"second {name}")))
    return Task(**{"item": item, "overlap": 2, **fields})  # type: ignore[arg-type]


def gold(name: str = "g", preference: int = 1, **fields: object) -> Task:
    """A pair whose answer is known."""
    return pair(name, **{"purpose": "gold", "overlap": 0, "gold": {"preference": preference}, **fields})


def enrol(store: Store, *names: str, **fields: object) -> None:
    for name in names:
        store.enrol(Annotator(name, **fields))  # type: ignore[arg-type]


def vote(task: str, annotator: str, key: str, preference: int = 1, **body: object) -> Submission:
    return Submission("vote", task, annotator, key, {"preference": preference, **body})


def say(store: Store, kind: str, task: str, annotator: str, **body: object) -> Event:
    """Lease a task and say something of it."""
    store.hand_out(task, annotator)
    return store.submit(Submission(kind, task, annotator, f"{kind}:{annotator}:{task}", body))


def answer(store: Store, task: str, annotator: str, preference: int = 1) -> int:
    """Lease a task and vote on it; the event's sequence."""
    return say(store, "vote", task, annotator, preference=preference).sequence


def answers(store: Store, tasks: Iterable[str], *annotators: str, preference: int = 1) -> None:
    """Everybody votes the same on every task."""
    for task in tasks:
        for name in annotators:
            answer(store, task, name, preference)


def asked(store: Store) -> list[Task]:
    """All that a store asks."""
    return [store.task(name) for name in store.tasks()]


def rows_of(store: Store, labels: Labels = EQUAL, until: int | None = None, **of: str) -> list[dict[str, Any]]:
    """The pairs that would be trained on."""
    return preference_pairs(snapshot(store, until, **of), labels)


def without_projects(place: Path) -> None:
    """Turn a store of SQLite into one of the version before there were projects (m0007)."""
    with sqlite3.connect(place) as raw:
        for line in BEFORE_PROJECTS:
            raw.execute(line)


BEFORE_PROJECTS = (
    "DROP TABLE members", "DROP TABLE projects", "DROP INDEX progress_queue", "DROP INDEX answers_of_annotator",
    *(f"ALTER TABLE {table} DROP COLUMN project" for table in ("tasks", "exclusions", "answers", "progress")),
    "CREATE INDEX progress_queue ON progress (purpose, open, urgency, number)",
    "CREATE INDEX answers_of_annotator ON answers (annotator, event)",
    "UPDATE alembic_version SET version_num = 'm0007'",
)  # fmt: skip
"""What makes a store one of the version before there were projects."""
