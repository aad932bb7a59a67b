"""Small tasks, annotators and a clock that moves when told."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.config.run import DataSpec
from penstock.data.sources import open_source, register_source
from penstock.feedback.records import Annotator, Item, Response, Submission, Task
from penstock.feedback.store import Store
from penstock.product.source import open_feedback

register_source("feedback", open_feedback)


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


def enrol(store: Store, *names: str) -> None:
    for name in names:
        store.enrol(Annotator(name))


def vote(task: str, annotator: str, key: str, preference: int = 1, **body: object) -> Submission:
    return Submission("vote", task, annotator, key, {"preference": preference, **body})


def answer(store: Store, task: str, annotator: str, preference: int = 1) -> int:
    """Lease a task and vote on it; the event's sequence."""
    store.hand_out(task, annotator)
    return store.submit(vote(task, annotator, f"{annotator}:{task}", preference)).sequence


def without_projects(place: Path) -> None:
    """Turn a store of SQLite into one of the version before there were projects (m0007)."""
    with sqlite3.connect(place) as raw:
        for line in (
            "DROP TABLE members", "DROP TABLE projects", "DROP INDEX progress_queue", "DROP INDEX answers_of_annotator",
            *(f"ALTER TABLE {table} DROP COLUMN project" for table in ("tasks", "exclusions", "answers", "progress")),
            "CREATE INDEX progress_queue ON progress (purpose, open, urgency, number)",
            "CREATE INDEX answers_of_annotator ON answers (annotator, event)",
            "UPDATE alembic_version SET version_num = 'm0007'",
        ):  # fmt: skip
            raw.execute(line)
