"""Gold from what is asked already: made with its known answer, or of what many trusted people agree on; and taken back.

Both are events, so that what was read up to an earlier one stays as it was.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from penstock.feedback import rows, schema
from penstock.feedback.errors import FeedbackError, NothingToUndo
from penstock.feedback.exchange.questions import known_answer
from penstock.feedback.exchange.snapshot import Labels, Votes, snapshot
from penstock.feedback.judgements import Comparison, Unit, gold_units, once, unit_of
from penstock.feedback.quality.reliability import ASKED
from penstock.feedback.records import DEFAULT, Event
from penstock.feedback.store import Store

MEASURED = 5
"""Judgements of gold from which somebody may be trusted: people who only agree with each other never make gold."""


@dataclass(frozen=True)
class Agreed:
    """When people's agreement makes a pair gold."""

    people: int = 5
    """Trusted people who have judged it."""
    weight: float = 1.4
    """What the word of a trusted one is worth at least, in log-odds."""
    agreement: float = 0.95
    """Share of them who take the same side."""

    def __post_init__(self) -> None:
        if self.people < 2 or self.weight <= 0 or not 0.5 < self.agreement <= 1:
            raise FeedbackError(f"{self}: at least 2 people, a weight above 0, an agreement above one half and up to 1")


@dataclass(frozen=True)
class Candidate:
    """A pair that could be gold."""

    task: str
    body: Mapping[str, Any]
    people: int
    agreement: float

    def reason(self) -> str:
        """Why, as the log keeps it."""
        side = "first" if self.body["preference"] > 0 else "second"
        return f"{self.agreement:.0%} of {self.people} trusted people prefer the {side} response"


def agreed(store: Store, policy: Agreed, most: int = 100, project: str = DEFAULT) -> list[Candidate]:
    """The pairs on which enough trusted people agree and that are not gold, nor were taken back; most people first."""
    taken = snapshot(store, project=project)
    votes = Votes.of(taken, Labels())
    measured = Counter(comparison.annotator for comparison in votes.found if comparison.unit in votes.gold)
    trusted = {name for name, count in measured.items() if count >= MEASURED and votes.weights[name] >= policy.weight}
    said: dict[Unit, list[Comparison]] = defaultdict(list)
    known = votes.gold.keys() | gold_units(taken.tasks[name] for name in taken.state.demoted).keys()
    for comparison in once(votes.found):
        pair = comparison.purpose in ASKED and comparison.task.form == "pair"
        if pair and comparison.annotator in trusted and comparison.unit not in known:
            said[comparison.unit].append(comparison)
    made = []
    for mine in said.values():
        lean = sum(comparison.sign for comparison in mine)
        share = sum(comparison.sign * lean > 0 for comparison in mine) / len(mine)
        if len(mine) >= policy.people and share >= policy.agreement:
            task = mine[0].task
            side = unit_of(task.item)[1] * (1 if lean > 0 else -1)
            made.append(Candidate(task.id, {"preference": side}, len(mine), share))
    return sorted(made, key=lambda one: (-one.people, one.task))[:most]


def promote(store: Store, administrator: str, task: str, answer: Any, reason: str) -> str:
    """Make gold of a task's item, with its known answer (``questions.known_answer``); gives the gold task's name.

    Again, it changes nothing. Of gold that was taken back the answer may be None: the one that it had.

    Raises:
        NotAllowed: only administrators do.
        NotFound: there is no such task.
        FeedbackError: no answer to such a question, or gold in force has another one.
    """
    origin = made = store.task(task)
    gold = origin.gold if answer is None and origin.purpose == "gold" else known_answer(origin, answer)
    if origin.purpose != "gold":
        made = replace(origin, purpose="gold", overlap=0, reserved="", round="", strategy="random", gold=gold, origin=task)
    there = sa.select(schema.tasks.c.id).where(schema.tasks.c.item == made.item.id, schema.tasks.c.purpose == "gold")
    with store.database.write() as connection:
        rows.require_admin(connection, administrator)
        for name in connection.execute(there.where(schema.tasks.c.project == made.project)).scalars().all():
            other = rows.load_task(connection, name)
            in_force = name == task or _standing(connection, name) == "promote"
            if other.form == made.form and other.gold != gold and in_force:
                raise FeedbackError(f"gold {name} has another known answer; take it back first (demote), or give that answer")
        rows.save_task(connection, made, store.now())
        if _standing(connection, made.id) != "promote":
            rows.add_promotion(connection, store.now(), administrator, made, reason)
    return made.id


def demote(store: Store, administrator: str, task: str, reason: str) -> Event:
    """Take gold back: nobody is asked it any more, nobody is measured by it, and it decides no label. ``promote`` reverses it.

    Raises:
        NotAllowed: only administrators do.
        NothingToUndo: the task is no gold, or taken back already.
    """
    known = store.task(task)
    with store.database.write() as connection:
        rows.require_admin(connection, administrator)
        if known.purpose != "gold" or _standing(connection, task) == "demote":
            raise NothingToUndo(f"task {task} is no gold in force")
        about = {"task": task, "project": known.project, "body": {"reason": reason}}
        return rows.add_decision(connection, store.now(), "demote", administrator, **about)


def _standing(connection: Connection, task: str) -> str | None:
    """What was decided last about a gold task."""
    table = schema.events.c
    query = sa.select(table.kind).where(table.task == task, table.kind.in_(("promote", "demote")))
    return connection.execute(query.order_by(table.sequence.desc()).limit(1)).scalar()
