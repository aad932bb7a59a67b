"""Who is asked what next: seats, leases, and gold and repeats mixed in without a sign.

A task of overlap k has k seats. A judgement in force fills one; a lease holds one until its deadline. Seats are only given
and filled by a writer that holds the head of the log, so filled and held seats together never exceed k.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from penstock.feedback import rows, schema
from penstock.feedback.errors import AlreadyAnswered, FeedbackError, NotAllowed, SeatTaken
from penstock.feedback.records import JUDGEMENTS, Lease, Task, canonical

annotators, answers, leases, progress, tasks = (
    schema.annotators, schema.answers, schema.leases, schema.progress, schema.tasks
)  # fmt: skip

WHO: sa.BindParameter[str] = sa.bindparam("who")
TASK: sa.BindParameter[str] = sa.bindparam("name")
NOW: sa.BindParameter[float] = sa.bindparam("now")

PERSON = sa.select(
    annotators.c.role,
    annotators.c.enabled,
    sa.select(sa.func.count()).where(leases.c.annotator == WHO, leases.c.deadline > NOW).scalar_subquery(),
    sa.select(sa.func.count()).where(answers.c.annotator == WHO).scalar_subquery(),
).where(annotators.c.name == WHO)
"""An annotator's role, whether they are switched on, how many leases they hold and how many tasks they are done with."""

SEATS = (
    sa.select(
        annotators.c.role,
        annotators.c.enabled,
        progress.c.judgements,
        progress.c.open,
        progress.c.free_at,
        answers.c.kind,
        sa.select(schema.head.c.events).scalar_subquery(),
        leases.c.annotator,
        leases.c.shown,
        leases.c.granted,
        leases.c.deadline,
    )
    .select_from(annotators)
    .join(progress, progress.c.task == TASK)
    .outerjoin(answers, (answers.c.task == progress.c.task) & (answers.c.annotator == annotators.c.name))
    .outerjoin(
        leases, (leases.c.task == progress.c.task) & sa.or_(leases.c.annotator == annotators.c.name, leases.c.deadline > NOW)
    )
    .where(annotators.c.name == WHO)
)
"""Everything that decides about an annotator and a task, a row for each lease."""


def party_to(task: Any, who: Any) -> sa.ColumnElement[bool]:
    """Whether somebody has answered the task that a task repeats or adjudicates: nobody settles a dispute of their own."""
    origin = tasks.alias()
    return sa.exists().where(origin.c.id == task, answers.c.task == origin.c.origin, answers.c.annotator == who)


PARTY = sa.select(sa.literal(1)).where(party_to(TASK, WHO))


def _first(purpose: str) -> sa.Select[Any]:
    """The most urgent open task of a purpose with a free seat that the annotator has neither answered nor holds."""
    answered = sa.exists().where(answers.c.task == progress.c.task, answers.c.annotator == WHO)
    mine = sa.exists().where(leases.c.task == progress.c.task, leases.c.annotator == WHO, leases.c.deadline > NOW)
    found = (
        sa.select(progress.c.task, progress.c.urgency, progress.c.number)
        .where(progress.c.purpose == purpose, progress.c.open, progress.c.free_at <= NOW, ~answered, ~mine)
        .where(*([~party_to(progress.c.task, WHO)] if purpose == "adjudication" else []))
        .order_by(progress.c.urgency, progress.c.number)
        .limit(1)
    )
    return sa.select(found.subquery())


def _waiting(*purposes: str) -> sa.Select[Any]:
    """The first of several purposes. Each is looked up in the index in its own order; none is sorted."""
    found = sa.union_all(*(_first(purpose) for purpose in purposes)).subquery()
    return sa.select(found.c.task).order_by(found.c.urgency, found.c.number).limit(1)


GOLD, ORDINARY = _waiting("gold"), _waiting("ask", "anchor")
ADJUDICATION, ORDINARY_AND_ADJUDICATION = _waiting("adjudication"), _waiting("ask", "anchor", "adjudication")

_again = tasks.alias()
_judged = (answers.c.annotator == WHO) & sa.or_(*(answers.c.kind == kind for kind in sorted(JUDGEMENTS)))
REPEAT_BEGUN = (
    sa.select(tasks.c.id)
    .where(tasks.c.reserved == WHO)
    .where(~sa.exists().where(answers.c.task == tasks.c.id, answers.c.annotator == WHO))
    .where(~sa.exists().where(leases.c.task == tasks.c.id, leases.c.deadline > NOW))
    .order_by(tasks.c.added)
    .limit(1)
)
"""A repeat for the annotator that was made but never answered."""
FAR_ENOUGH = sa.select(answers.c.event).where(_judged).order_by(answers.c.event.desc()).offset(sa.bindparam("back")).limit(1)
"""The event of the annotator's judgement that lies so many back."""
REPEATABLE = (
    sa.select(answers.c.task)
    .join(tasks, tasks.c.id == answers.c.task)
    .where(_judged, answers.c.event < sa.bindparam("before"), sa.or_(tasks.c.purpose == "ask", tasks.c.purpose == "anchor"))
    .where(~sa.exists().where(_again.c.origin == answers.c.task, _again.c.reserved == WHO))
    .order_by(answers.c.event)
    .limit(1)
)
"""The annotator's oldest judgement whose task was not repeated yet."""


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


def next_task(connection: Connection, annotator: str, policy: QueuePolicy, now: float) -> str | None:
    """The task to give an annotator, added first if it is a repeat; None if nothing is left for them.

    Raises:
        NotAllowed: they are switched off, or hold as many leases as they may.
        NotFound: there is no such annotator.
    """
    role, enabled, held, done = _row(connection, PERSON, who=annotator, now=now) or rows.nobody(annotator)
    if not enabled:
        raise NotAllowed(f"{annotator} is switched off; an administrator can enable them")
    if held >= policy.held:
        raise NotAllowed(f"{annotator} holds {held} tasks; answer, skip or give one back first")
    draw, found = uniform(policy.seed, annotator, done + held), None
    if draw < policy.gold_share:
        found = _first_of(connection, GOLD, annotator, now)
    elif draw < policy.gold_share + policy.repeat_share:
        found = _repeat(connection, annotator, policy, now)
    return found or _first_of(connection, ORDINARY if role == "annotator" else ORDINARY_AND_ADJUDICATION, annotator, now)


def next_adjudication(connection: Connection, annotator: str, policy: QueuePolicy, now: float) -> str | None:
    """The next task for an adjudicator alone, however many they hold; None if no dispute of others waits for them."""
    return _first_of(connection, ADJUDICATION, annotator, now)


Choose = Callable[[Connection, str, QueuePolicy, float], str | None]
"""Chooses the task to give an annotator."""


def _row(connection: Connection, query: sa.Select[Any], **values: object) -> Any:
    return connection.execute(query, values).first()


def _first_of(connection: Connection, where: sa.Select[Any], annotator: str, now: float) -> str | None:
    """The first task for an annotator in one of the queues above."""
    return connection.execute(where, {"who": annotator, "now": now}).scalar()


def _repeat(connection: Connection, annotator: str, policy: QueuePolicy, now: float) -> str | None:
    """A repeat that waits for the annotator, else one made of their oldest judgement that is far enough back."""
    if begun := _row(connection, REPEAT_BEGUN, who=annotator, now=now):
        return str(begun[0])
    if not (newest := _row(connection, FAR_ENOUGH, who=annotator, back=policy.repeat_after - 1)):
        return None
    if not (origin := _row(connection, REPEATABLE, who=annotator, before=newest[0])):
        return None
    task = rows.load_task(connection, origin[0])
    repeat = replace(task, purpose="repeat", origin=origin[0], reserved=annotator, overlap=1, gold=None)
    rows.save_task(connection, repeat, now)
    return repeat.id


@dataclass(frozen=True)
class Seats:
    """The seats of a task at one moment, as one annotator comes to them."""

    task: Task
    annotator: str
    role: str
    enabled: bool
    judged: int
    """Judgements in force."""
    done: str | None
    """The kind of event by which the annotator is done with the task."""
    lease: Lease | None
    """The annotator's own, expired or not."""
    others: tuple[float, ...]
    """Deadlines of the leases that others hold; not known where seats are without limit."""
    index: tuple[int, bool, float]
    """What ``progress`` says: judgements, open, free_at."""
    length: int
    """Events in the log."""
    party: bool
    """Whether the task is to settle what the annotator has voted on."""

    @property
    def free(self) -> bool:
        """Whether a seat is left besides those filled and those of others."""
        return not self.task.overlap or self.judged + len(self.others) < self.task.overlap

    def require_open(self) -> None:
        """Refuse whom the task is not open to: done with it already, not theirs, or no seat left besides those of others.

        Raises:
            AlreadyAnswered, NotAllowed, SeatTaken: as their names say.
        """
        task, name, who = self.task, self.task.id, self.annotator
        if not self.enabled:
            raise NotAllowed(f"{who} is switched off; an administrator can enable them")
        if task.reserved and task.reserved != who:
            raise NotAllowed(f"task {name} is meant for another annotator")
        if task.purpose == "adjudication" and self.role == "annotator":
            raise NotAllowed(f"task {name} needs an adjudicator; {who} is an annotator")
        if self.party:
            raise NotAllowed(f"task {name} settles what {who} has voted on; another adjudicator decides")
        if self.done is not None:
            raise AlreadyAnswered(f"{who} is done with task {name} ({self.done}); undo that first")
        if not self.free:
            raise SeatTaken(f"task {name}: all {task.overlap} seats are taken; ask for the next task")


def seats(connection: Connection, task: Task, annotator: str, now: float) -> Seats:
    """The seats of a task as an annotator comes to them. Raises NotFound."""
    # Where seats are without limit, nobody else's lease matters: none expires after the end of time.
    given = {"who": annotator, "name": task.id, "now": now if task.overlap else math.inf}
    found = connection.execute(SEATS, given).all()
    if not found:
        rows.load_annotator(connection, annotator)
        rows.no_task(task.id)
    role, enabled, judged, still_open, free_at, done, length = found[0][:7]
    lease, others = None, []
    for holder, shown, granted, deadline in (row[7:] for row in found):
        if holder == annotator:
            lease = Lease(task.id, annotator, tuple(json.loads(shown)), granted, deadline)
        elif holder is not None:
            others.append(deadline)
    index = (judged, still_open, free_at)
    party = task.purpose == "adjudication" and _row(connection, PARTY, name=task.id, who=annotator) is not None
    return Seats(task, annotator, role, enabled, judged, done, lease, tuple(others), index, length, party)


def take_seat(connection: Connection, task: Task, annotator: str, policy: QueuePolicy, now: float) -> Lease:
    """Give the annotator a lease of a task, or a new deadline for the one they have.

    Raises:
        AlreadyAnswered, NotAllowed, NotFound, SeatTaken: as their names say.
    """
    present = seats(connection, task, annotator, now)
    present.require_open()
    until, lease = now + policy.lease_seconds, present.lease
    if lease is not None:
        lease = replace(lease, granted=lease.granted if lease.deadline > now else now, deadline=until)
        renew(connection, lease, until)
    else:
        lease = Lease(task.id, annotator, display_order(task.id, annotator, len(task.item.responses), policy.seed), now, until)
        row = {"task": task.id, "annotator": annotator, "granted": now, "deadline": until}
        connection.execute(leases.insert().values(**row, shown=canonical(list(lease.order))))
    settle(connection, present, present.judged, (*present.others, until))
    return lease


def mend(connection: Connection, task: Task, annotator: str, now: float) -> bool:
    """Bring the queue's index up to date with a task's leases as they are ``now``; whether it was not.

    The index says from when on a seat is free. Where a clock goes back, a lease that had ended holds its seat again.
    """
    present = seats(connection, task, annotator, now)
    return settle(connection, present, present.judged, present.others)


def give_back(connection: Connection, task: Task, annotator: str, now: float) -> None:
    """End the annotator's lease of a task now; without one that holds nothing happens."""
    present = seats(connection, task, annotator, now)
    if present.lease is not None and present.lease.deadline > now:
        renew(connection, present.lease, now)
        settle(connection, present, present.judged, present.others)


def renew(connection: Connection, lease: Lease, deadline: float) -> None:
    """Write a lease's moment of grant, and give it another deadline."""
    mine = (leases.c.task == lease.task) & (leases.c.annotator == lease.annotator)
    connection.execute(leases.update().where(mine).values(granted=lease.granted, deadline=deadline))


def settle(connection: Connection, before: Seats, judged: int, held: Sequence[float]) -> bool:
    """Bring the queue's index up to date with a task's judgements and the deadlines of the leases that hold its seats.

    Gives whether it was not.
    """
    overlap = before.task.overlap
    full = overlap > 0 and judged + len(held) >= overlap
    index = (judged, overlap == 0 or judged < overlap, min(held) if full and held else 0.0)
    if index == before.index:
        return False
    judgements, still_open, free_at = index
    values = {"judgements": judgements, "open": still_open, "free_at": free_at}
    connection.execute(progress.update().where(progress.c.task == before.task.id).values(values))
    return True


def misplaced(connection: Connection, now: float) -> str | None:
    """A task that the queue's index hides though it has a free seat, or offers though it has none; None if there is none."""
    held = sa.select(sa.func.count()).where(leases.c.task == progress.c.task, leases.c.deadline > now).scalar_subquery()
    limited, judged = tasks.c.overlap > 0, progress.c.judgements
    closed, full = limited & (judged >= tasks.c.overlap), limited & (judged + held >= tasks.c.overlap)
    offered = progress.c.free_at <= now
    wrong = (progress.c.open & closed) | (~progress.c.open & ~closed) | (progress.c.open & (offered & full | ~offered & ~full))
    query = sa.select(progress.c.task).join(tasks, tasks.c.id == progress.c.task).where(wrong)
    return connection.execute(query.limit(1)).scalar()
