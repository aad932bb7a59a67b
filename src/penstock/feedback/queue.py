"""Who is asked what next: seats, leases, and gold and repeats mixed in without a sign.

A task of overlap k has k seats. A judgement that stands fills one; a lease holds one until its deadline. Seats are only given
and filled by a writer that holds the head of the log, so filled and held seats together never exceed k.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from penstock.feedback import rows, schema
from penstock.feedback.errors import AlreadyAnswered, FeedbackError, NotAllowed, SeatTaken
from penstock.feedback.records import JUDGEMENTS, Annotator, Lease, Task, canonical

answers, leases, progress, tasks = schema.answers, schema.leases, schema.progress, schema.tasks

# Statements are built once: building one costs more than running it.
THIS_TASK: sa.BindParameter[str] = sa.bindparam("this_task")
THIS_ANNOTATOR: sa.BindParameter[str] = sa.bindparam("this_annotator")
MINE = (leases.c.task == THIS_TASK) & (leases.c.annotator == THIS_ANNOTATOR)
DONE = sa.select(answers.c.kind).where(answers.c.task == THIS_TASK, answers.c.annotator == THIS_ANNOTATOR)
JUDGED = sa.select(progress.c.judgements).where(progress.c.task == THIS_TASK)
HELD_BY_OTHERS = (
    sa.select(sa.func.count())
    .select_from(leases)
    .where(leases.c.task == THIS_TASK, leases.c.deadline > sa.bindparam("now"), leases.c.annotator != THIS_ANNOTATOR)
)
HELD_BY = (
    sa.select(sa.func.count())
    .select_from(leases)
    .where(leases.c.annotator == THIS_ANNOTATOR, leases.c.deadline > sa.bindparam("now"))
)
DONE_BY = sa.select(sa.func.count()).select_from(answers).where(answers.c.annotator == THIS_ANNOTATOR)
COUNT = progress.update().where(progress.c.task == THIS_TASK)
RENEW, ADD_LEASE, DROP_LEASE = leases.update().where(MINE), leases.insert(), leases.delete().where(MINE)


def _waiting_statement() -> sa.Select[Any]:
    """The most urgent open task of some purposes with a free seat that the annotator has neither answered nor holds."""
    now: sa.BindParameter[float] = sa.bindparam("now")
    held = sa.select(sa.func.count()).where(leases.c.task == progress.c.task, leases.c.deadline > now).scalar_subquery()
    answered = sa.exists().where(answers.c.task == progress.c.task, answers.c.annotator == THIS_ANNOTATOR)
    mine = sa.exists().where(leases.c.task == progress.c.task, leases.c.annotator == THIS_ANNOTATOR, leases.c.deadline > now)
    return (
        sa.select(progress.c.task)
        .join(tasks, tasks.c.id == progress.c.task)
        .where(progress.c.open, progress.c.purpose.in_(sa.bindparam("purposes", expanding=True)))
        .where(sa.or_(tasks.c.overlap == 0, progress.c.judgements + held < tasks.c.overlap), ~answered, ~mine)
        .order_by(progress.c.urgency, progress.c.number)
        .limit(1)
    )


WAITING = _waiting_statement()


@dataclass(frozen=True)
class QueuePolicy:
    """How tasks are handed out. Shares are of all that an annotator is given; what a share cannot fill goes to the rest."""

    lease_seconds: float = 900.0
    held: int = 2
    """Leases that one annotator may hold: the task on the screen and the one fetched ahead."""
    gold_share: float = 0.08
    repeat_share: float = 0.04
    repeat_after: int = 20
    """Judgements of the annotator between a task and its repeat."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.lease_seconds <= 0 or self.held < 1 or self.repeat_after < 1:
            raise FeedbackError("lease_seconds must be positive, held and repeat_after at least 1")
        if min(self.gold_share, self.repeat_share) < 0 or self.gold_share + self.repeat_share > 0.5:
            raise FeedbackError("gold_share and repeat_share are shares of 0 or more, at most one half together")


def uniform(*names: object) -> float:
    """A number in [0, 1) that is a pure function of the names."""
    return int.from_bytes(hashlib.blake2b(repr(names).encode(), digest_size=7).digest(), "big") / 2**56


def display_order(task: str, annotator: str, responses: int, seed: int) -> tuple[int, ...]:
    """In which order the responses are shown: random, and the same whenever this annotator sees this task."""
    places = list(range(responses))
    random.Random(f"{seed}/{task}/{annotator}").shuffle(places)
    return tuple(places)


def next_task(connection: Connection, annotator: Annotator, policy: QueuePolicy, now: float) -> str | None:
    """The task to hand to an annotator, added first if it is a repeat; None if nothing is left for them.

    Raises:
        NotAllowed: they hold as many leases as they may.
    """
    held = connection.execute(HELD_BY, {"this_annotator": annotator.name, "now": now}).scalar_one()
    if held >= policy.held:
        raise NotAllowed(f"{annotator.name} holds {held} tasks; answer, skip or give one back first")
    done = connection.execute(DONE_BY, {"this_annotator": annotator.name}).scalar_one()
    draw, found = uniform(policy.seed, annotator.name, done + held), None
    if draw < policy.gold_share:
        found = _waiting(connection, annotator.name, ("gold",), now)
    elif draw < policy.gold_share + policy.repeat_share:
        found = _repeat(connection, annotator.name, policy, now)
    ordinary = ("ask", "anchor") if annotator.role == "annotator" else ("ask", "anchor", "adjudication")
    return found or _waiting(connection, annotator.name, ordinary, now)


def _waiting(connection: Connection, annotator: str, purposes: Sequence[str], now: float) -> str | None:
    return connection.execute(WAITING, {"this_annotator": annotator, "purposes": list(purposes), "now": now}).scalar()


def _repeat(connection: Connection, annotator: str, policy: QueuePolicy, now: float) -> str | None:
    """A repeat that waits for the annotator, else one made of their oldest judgement that is far enough back."""
    begun = (
        sa.select(tasks.c.id)
        .where(tasks.c.reserved == annotator)
        .where(~sa.exists().where(answers.c.task == tasks.c.id, answers.c.annotator == annotator))
        .where(~sa.exists().where(leases.c.task == tasks.c.id, leases.c.deadline > now))
        .order_by(tasks.c.added)
    )
    waiting = connection.execute(begun.limit(1)).scalar()
    if waiting is not None:
        return waiting
    judged = sa.select(answers.c.event).where(answers.c.annotator == annotator, answers.c.kind.in_(JUDGEMENTS))
    newest = connection.execute(judged.order_by(answers.c.event.desc()).offset(policy.repeat_after - 1).limit(1)).scalar()
    if newest is None:
        return None
    again = tasks.alias()
    query = (
        sa.select(answers.c.task)
        .join(tasks, tasks.c.id == answers.c.task)
        .where(answers.c.annotator == annotator, answers.c.kind.in_(JUDGEMENTS), answers.c.event < newest)
        .where(tasks.c.purpose.in_(("ask", "anchor")))
        .where(~sa.exists().where(again.c.origin == answers.c.task, again.c.reserved == annotator))
        .order_by(answers.c.event)
        .limit(1)
    )
    origin = connection.execute(query).scalar()
    if origin is None:
        return None
    task = rows.load_task(connection, origin)
    repeat = replace(task, purpose="repeat", origin=origin, reserved=annotator, overlap=1, gold=None)
    rows.save_task(connection, repeat, now)
    return repeat.id


def take_seat(connection: Connection, task: Task, annotator: Annotator, policy: QueuePolicy, now: float) -> Lease:
    """Give the annotator a lease of a task, or a new deadline for the one they have.

    Raises:
        AlreadyAnswered, NotAllowed, SeatTaken: as their names say.
    """
    require_open(connection, task, annotator, now)
    name, deadline = task.id, now + policy.lease_seconds
    present = rows.load_lease(connection, name, annotator.name)
    if present is not None:
        granted = present.granted if present.deadline > now else now
        changed = {"this_task": name, "this_annotator": annotator.name, "deadline": deadline, "granted": granted}
        connection.execute(RENEW, changed)
        return replace(present, deadline=deadline, granted=granted)
    order = display_order(name, annotator.name, len(task.item.responses), policy.seed)
    lease = Lease(name, annotator.name, order, now, deadline)
    row = {"task": name, "annotator": annotator.name, "granted": now, "deadline": deadline}
    connection.execute(ADD_LEASE, {**row, "shown": canonical(list(order))})
    return lease


def require_open(connection: Connection, task: Task, annotator: Annotator, now: float) -> None:
    """Refuse whom the task is not open to: done with it already, not theirs, or no seat left beside those of others.

    Raises:
        AlreadyAnswered, NotAllowed, SeatTaken: as their names say.
    """
    name = task.id
    if not annotator.enabled:
        raise NotAllowed(f"{annotator.name} is switched off; an administrator can enable them")
    if task.reserved and task.reserved != annotator.name:
        raise NotAllowed(f"task {name} is meant for another annotator")
    if task.purpose == "adjudication" and annotator.role == "annotator":
        raise NotAllowed(f"task {name} needs an adjudicator; {annotator.name} is an annotator")
    standing = connection.execute(DONE, {"this_task": name, "this_annotator": annotator.name}).scalar()
    if standing is not None:
        raise AlreadyAnswered(f"{annotator.name} is done with task {name} ({standing}); undo that first")
    if task.overlap and taken(connection, name, annotator.name, now) >= task.overlap:
        raise SeatTaken(f"task {name}: all {task.overlap} seats are taken; ask for the next task")


def taken(connection: Connection, task: str, beside: str, now: float) -> int:
    """Seats of a task that are filled by judgements or held by leases of annotators other than ``beside``."""
    judged = connection.execute(JUDGED, {"this_task": task}).scalar_one()
    return judged + connection.execute(HELD_BY_OTHERS, {"this_task": task, "this_annotator": beside, "now": now}).scalar_one()


def count_judgement(connection: Connection, task: Task, change: int) -> None:
    """Count a judgement of a task that was made or taken back, and open or close the task."""
    name = task.id
    judged = connection.execute(JUDGED, {"this_task": name}).scalar_one() + change
    still_open = task.overlap == 0 or judged < task.overlap
    connection.execute(COUNT, {"this_task": name, "judgements": judged, "open": still_open})
