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
from penstock.feedback.errors import AlreadyAnswered, NotAllowed, SeatTaken
from penstock.feedback.policy import QueuePolicy
from penstock.feedback.records import JUDGEMENTS, Lease, Task, canonical

annotators, answers, events, leases, members, progress, tasks = (
    schema.annotators, schema.answers, schema.events, schema.leases, schema.members, schema.progress, schema.tasks
)  # fmt: skip

WHO: sa.BindParameter[str] = sa.bindparam("who")
TASK: sa.BindParameter[str] = sa.bindparam("name")
NOW: sa.BindParameter[float] = sa.bindparam("now")
PROJECT: sa.BindParameter[str] = sa.bindparam("project")

paused, _taken_back = schema.exclusions, schema.exclusions.alias()
PAUSED = sa.select(sa.literal(1)).where(
    paused.c.annotator == paused.c.person,
    paused.c.kind == "exclude",
    paused.c.project.in_(("", PROJECT)),
    ~sa.exists().where(_taken_back.c.target == paused.c.sequence, _taken_back.c.kind == "include"),
)
"""What the store itself has excluded from a project (``admission.py``) and nobody has included."""
_mine = (answers.c.annotator == WHO) & (answers.c.project == PROJECT)

PERSON = sa.select(
    annotators.c.role,
    annotators.c.enabled,
    sa.select(sa.func.count())
    .where(leases.c.annotator == WHO, leases.c.deadline > NOW, progress.c.task == leases.c.task, progress.c.project == PROJECT)
    .scalar_subquery(),
    sa.select(sa.func.count()).where(_mine).scalar_subquery(),
    annotators.c.quota,
    PAUSED.where(paused.c.person == WHO).exists(),
    sa.exists().where(members.c.project == PROJECT, members.c.annotator == WHO),
).where(annotators.c.name == WHO)
"""An annotator's role, whether they are switched on, and in a project: how many leases they hold, how many tasks they are done
with, how many they may answer, whether the store has paused them, and whether they are a member."""
_judged = _mine & sa.or_(*(answers.c.kind == kind for kind in sorted(JUDGEMENTS)))
ANSWERED = sa.select(sa.func.count()).where(_judged)
GOLD_ANSWERED = sa.select(sa.func.count()).where(_judged, progress.c.task == answers.c.task, progress.c.purpose == "gold")
DECIDED = sa.select(sa.literal(1)).where(paused.c.person == WHO, paused.c.annotator == WHO, paused.c.project == PROJECT)
"""Whether the store has ever decided about an annotator (``admission.py``)."""

SEATS = (
    sa.select(
        annotators.c.role,
        annotators.c.enabled,
        progress.c.judgements,
        progress.c.open,
        progress.c.free_at,
        answers.c.kind,
        sa.select(schema.head.c.events).scalar_subquery(),
        members.c.annotator,
        leases.c.annotator,
        leases.c.shown,
        leases.c.granted,
        leases.c.deadline,
    )
    .select_from(annotators)
    .join(progress, progress.c.task == TASK)
    .outerjoin(members, (members.c.project == progress.c.project) & (members.c.annotator == annotators.c.name))
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


def meant_for_others(task: Any, who: Any) -> sa.ColumnElement[bool]:
    """Whether a task is reserved, and not for somebody; names hold no commas."""
    return sa.exists().where(tasks.c.id == task, tasks.c.reserved != "", ~listed(tasks.c.reserved, who))


def listed(names: Any, who: Any) -> sa.ColumnElement[bool]:
    """Whether a name is one of those that a column has, with commas between them."""
    between = sa.literal(",") + names + ","
    return sa.func.replace(between, sa.literal(",") + who + ",", "") != between


_later = events.alias()
DEMOTED = sa.exists().where(
    events.c.task == progress.c.task,
    events.c.kind == "demote",
    ~sa.exists().where(_later.c.task == events.c.task, _later.c.kind == "promote", _later.c.sequence > events.c.sequence),
)
"""Whether gold was taken back."""


def _first(purpose: str) -> sa.Select[Any]:
    """The most urgent open task of a purpose with a free seat that the annotator has neither answered nor holds."""
    answered = sa.exists().where(answers.c.task == progress.c.task, answers.c.annotator == WHO)
    mine = sa.exists().where(leases.c.task == progress.c.task, leases.c.annotator == WHO, leases.c.deadline > NOW)
    found = (
        sa.select(progress.c.task, progress.c.urgency, progress.c.number)
        .where(progress.c.project == PROJECT, progress.c.purpose == purpose)
        .where(progress.c.open, progress.c.free_at <= NOW, ~answered, ~mine)
        .where(~meant_for_others(progress.c.task, WHO), *([~DEMOTED] if purpose == "gold" else []))
        .where(*([~party_to(progress.c.task, WHO)] if purpose in ("adjudication", "gold") else []))
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
REPEAT_BEGUN = (
    sa.select(tasks.c.id)
    .where(tasks.c.reserved == WHO, tasks.c.purpose == "repeat", tasks.c.project == PROJECT)
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
    .where(~sa.exists().where(_again.c.origin == answers.c.task, _again.c.reserved == WHO, _again.c.purpose == "repeat"))
    .order_by(answers.c.event)
    .limit(1)
)
"""The annotator's oldest judgement whose task was not repeated yet."""


def uniform(*names: object) -> float:
    """A number in [0, 1) that is a pure function of the names."""
    return int.from_bytes(hashlib.blake2b(repr(names).encode(), digest_size=7).digest(), "big") / 2**56


def display_order(task: str, annotator: str, responses: int, seed: int) -> tuple[int, ...]:
    """In which order the responses are shown: random, and the same whenever this annotator sees this task."""
    places = list(range(responses))
    random.Random(f"{seed}/{task}/{annotator}").shuffle(places)
    return tuple(places)


def next_task(connection: Connection, annotator: str, policy: QueuePolicy, now: float, project: str) -> str | None:
    """The task of a project to give an annotator, added first if it is a repeat; None if nothing is left for them.

    Raises:
        NotAllowed: they are switched off, no member of the project, or hold as many leases as they may.
        NotFound: there is no such annotator.
    """
    given: Given = {"who": annotator, "now": now, "project": project}
    role, enabled, held, done, quota, stopped, member = _row(connection, PERSON, given) or rows.nobody(annotator)
    if not enabled:
        raise NotAllowed(f"{annotator} is switched off; an administrator can enable them")
    if not member:
        raise NotAllowed(f"{annotator} is no member of project {project}; penstock feedback project adds them")
    if held >= policy.held:
        raise NotAllowed(f"{annotator} holds {held} tasks; answer, skip or give one back first")
    most = quota or policy.quota
    if stopped or (most and _row(connection, ANSWERED, given)[0] + held >= most):
        return None
    if role == "annotator" and _qualifying(connection, given, policy):
        return _first_of(connection, GOLD, given)
    draw, found = uniform(policy.seed, annotator, done + held), None
    if draw < policy.gold_share:
        found = _first_of(connection, GOLD, given)
    elif draw < policy.gold_share + policy.repeat_share:
        found = _repeat(connection, given, policy)
    return found or _first_of(connection, ORDINARY if role == "annotator" else ORDINARY_AND_ADJUDICATION, given)


def _qualifying(connection: Connection, given: Given, policy: QueuePolicy) -> bool:
    """Whether somebody has not answered all the gold that comes first, and no administrator has let them pass."""
    if not policy.qualify or _row(connection, GOLD_ANSWERED, given)[0] >= policy.qualify:
        return False
    return _row(connection, DECIDED, given) is None


def next_adjudication(connection: Connection, annotator: str, policy: QueuePolicy, now: float, project: str) -> str | None:
    """The next task for an adjudicator alone, however many they hold; None if no dispute of others waits for them."""
    return _first_of(connection, ADJUDICATION, {"who": annotator, "now": now, "project": project})


Choose = Callable[[Connection, str, QueuePolicy, float, str], str | None]
"""Chooses the task of a project to give an annotator."""
Given = dict[str, Any]
"""Values of the bind parameters above."""


def _row(connection: Connection, query: sa.Select[Any], given: Given) -> Any:
    return connection.execute(query, given).first()


def _first_of(connection: Connection, where: sa.Select[Any], given: Given) -> str | None:
    """The first task for an annotator in one of the queues above."""
    return connection.execute(where, given).scalar()


def _repeat(connection: Connection, given: Given, policy: QueuePolicy) -> str | None:
    """A repeat that waits for the annotator, else one made of their oldest judgement that is far enough back."""
    if begun := _row(connection, REPEAT_BEGUN, given):
        return str(begun[0])
    if not (newest := _row(connection, FAR_ENOUGH, given | {"back": policy.repeat_after - 1})):
        return None
    if not (origin := _row(connection, REPEATABLE, given | {"before": newest[0]})):
        return None
    task = rows.load_task(connection, origin[0])
    repeat = replace(task, purpose="repeat", origin=origin[0], reserved=given["who"], overlap=1, gold=None)
    rows.save_task(connection, repeat, given["now"])
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
    member: bool
    """Whether the annotator is a member of the task's project."""

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
        self.require_member()
        if not self.enabled:
            raise NotAllowed(f"{who} is switched off; an administrator can enable them")
        if task.reserved and who not in task.people:
            raise NotAllowed(f"task {name} is meant for another annotator")
        if task.purpose == "adjudication" and self.role == "annotator":
            raise NotAllowed(f"task {name} needs an adjudicator; {who} is an annotator")
        if self.party:
            raise NotAllowed(f"task {name} settles what {who} has voted on; another adjudicator decides")
        if self.done is not None:
            raise AlreadyAnswered(f"{who} is done with task {name} ({self.done}); undo that first")
        if not self.free:
            raise SeatTaken(f"task {name}: all {task.overlap} seats are taken; ask for the next task")

    def require_member(self) -> None:
        """Raises NotAllowed: the annotator is no member of the task's project."""
        if not self.member:
            raise NotAllowed(f"{self.annotator} is no member of project {self.task.project}; no task of it is theirs")


def seats(connection: Connection, task: Task, annotator: str, now: float) -> Seats:
    """The seats of a task as an annotator comes to them. Raises NotFound."""
    # Where seats are without limit, nobody else's lease matters: none expires after the end of time.
    given = {"who": annotator, "name": task.id, "now": now if task.overlap else math.inf}
    found = connection.execute(SEATS, given).all()
    if not found:
        rows.load_annotator(connection, annotator)
        rows.no_task(task.id)
    role, enabled, judged, still_open, free_at, done, length, member = found[0][:8]
    lease, others = None, []
    for holder, shown, granted, deadline in (row[8:] for row in found):
        if holder == annotator:
            lease = Lease(task.id, annotator, tuple(json.loads(shown)), granted, deadline)
        elif holder is not None:
            others.append(deadline)
    index = (judged, still_open, free_at)
    party = task.purpose == "adjudication" and _row(connection, PARTY, given) is not None
    held = tuple(others)
    return Seats(task, annotator, role, enabled, judged, done, lease, held, index, length, party, member is not None)


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
