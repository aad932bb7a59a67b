"""The feedback store: an append-only log of what people said, and the queue of what to ask them.

Each verb is one transaction. When it returns, what it did is durable; when it raises, nothing happened. Any number of
processes may use one store at once.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from penstock.feedback import admission, bodies, projects, queue, rows, schema
from penstock.feedback.audit import compared
from penstock.feedback.database import Database, connect
from penstock.feedback.errors import FeedbackError, NotAllowed, NothingToUndo, SeatTaken
from penstock.feedback.policy import QueuePolicy
from penstock.feedback.projects import Project
from penstock.feedback.records import (
    DEFAULT,
    JUDGEMENTS,
    PASSES,
    REMARKS,
    Annotator,
    Event,
    Lease,
    Submission,
    Task,
    vars_of,
)
from penstock.feedback.state import State, fold

CACHED_TASKS = 4096


@dataclass(frozen=True)
class Count:
    """How far the tasks of one purpose are."""

    tasks: int
    open: int
    judgements: int


class Store:
    """Feedback in one SQLite file or one PostgreSQL database; :meth:`open` opens or creates it.

    ``now`` gives seconds since an epoch that all processes share; tests put a virtual clock in its place.
    """

    def __init__(self, database: Database, policy: QueuePolicy, now: Callable[[], float]) -> None:
        self.policy = policy
        self.now = now
        self.database = database
        """Where the service keeps its own tables, such as sessions."""
        self._tasks: OrderedDict[str, Task] = OrderedDict()

    @classmethod
    def open(cls, place: str | Path, policy: QueuePolicy | None = None, now: Callable[[], float] = time.time) -> Store:
        """Open a store, or create it, and bring its schema up to date.

        Args:
            place: a file, or ``postgresql://USER@HOST/NAME``.

        Raises:
            FeedbackError: it cannot be opened, or a newer Penstock has written it.
        """
        return cls(connect(place), policy or QueuePolicy(), now)

    def close(self) -> None:
        self.database.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Annotators and tasks

    def enrol(self, annotator: Annotator, project: str = DEFAULT) -> None:
        """Add an annotator, or replace what is known of one, as a member of a project.

        Raises FeedbackError: their nature would change, or there is no such project.
        """
        with self.database.write() as connection:
            rows.save_annotator(connection, annotator, self.now())
            projects.admit(connection, project, annotator.name)

    def project(self, name: str = "") -> Project:
        """The project of a name, or the only one there is. Raises NotFound, and FeedbackError where there are several."""
        with self.database.read() as connection:
            return projects.load(connection, projects.chosen(connection, name))

    def annotator(self, name: str) -> Annotator:
        """The annotator of a name. Raises NotFound."""
        with self.database.read() as connection:
            return rows.load_annotator(connection, name)

    def annotators(self) -> list[Annotator]:
        """All annotators, by name."""
        with self.database.read() as connection:
            return rows.load_annotators(connection, schema.annotators.c.name != rows.STORE)

    def ask(self, tasks: Sequence[Task], read: rows.ReadBlob | None = None, by: str = rows.STORE) -> list[str]:
        """Add tasks, all or none, and give their names. A task that is there already is left as it is.

        New gold is in the log at once, ``by`` whom. ``read`` gives the bytes of media that the store does not have yet.

        Raises FeedbackError: there is no such project as a task's, it asks no such form, or the bytes of a blob are nowhere.
        """
        with self.database.write() as connection:
            for name in {task.project for task in tasks}:
                projects.load(connection, name).require_forms(task for task in tasks if task.project == name)
            for task in tasks:
                if rows.save_task(connection, task, self.now(), read) and task.purpose == "gold":
                    rows.add_promotion(connection, self.now(), by, task, "asked with its known answer")
        return [task.id for task in tasks]

    def task(self, name: str) -> Task:
        """The task of a name, with its item. Raises NotFound."""
        with self.database.read() as connection:
            return self._task(connection, name)

    def tasks_of(self, events: Iterable[Event]) -> dict[str, Task]:
        """The tasks that events speak of, by name, and those that they repeat or adjudicate."""
        with self.database.read() as connection:
            found = {name: self._task(connection, name) for name in dict.fromkeys(event.task for event in events if event.task)}
            origins = dict.fromkeys(task.origin for task in found.values() if task.origin)
            return found | {name: self._task(connection, name) for name in origins}

    def tasks(self, purpose: str = "", project: str = "") -> list[str]:
        """Names of all tasks, or of those of one purpose or project, in the order in which they were added."""
        table = schema.progress.c
        wanted = [column == value for column, value in ((table.purpose, purpose), (table.project, project)) if value]
        query = sa.select(table.task).where(*wanted).order_by(table.number)
        with self.database.read() as connection:
            return list(connection.execute(query).scalars())

    def counts(self, project: str = DEFAULT) -> dict[str, Count]:
        """How far the tasks of a project are, by purpose."""
        table = schema.progress.c
        counted = (sa.func.count(), sa.func.sum(sa.cast(table.open, sa.Integer)), sa.func.sum(table.judgements))
        query = sa.select(table.purpose, *counted).where(table.project == project).group_by(table.purpose)
        with self.database.read() as connection:
            return {purpose: Count(*map(int, numbers)) for purpose, *numbers in connection.execute(query)}

    # The queue

    def next_task(self, annotator: str, choose: queue.Choose = queue.next_task, project: str = DEFAULT) -> Lease | None:
        """Lease the next task of a project to an annotator: never one they are done with; None if nothing is left for them.

        Args:
            choose: from which part of the queue (``queue.next_task``, ``queue.next_adjudication``).

        Raises:
            NotAllowed: they are switched off, no member of the project, or hold as many leases as they may.
        """
        with self.database.write() as connection:
            now, policy = self.now(), projects.load(connection, project).within(self.policy)
            while (found := choose(connection, annotator, policy, now, project)) is not None:
                task = self._task(connection, found)
                try:
                    return queue.take_seat(connection, task, annotator, self.policy, now)
                except SeatTaken:  # the clock has gone back; without this the task would be at everybody's head of the queue
                    if not queue.mend(connection, task, annotator, now):
                        raise
        return None

    def hand_out(self, task: str, annotator: str) -> Lease:
        """Lease one certain task, or give a lease a new deadline.

        Raises:
            AlreadyAnswered, NotAllowed, SeatTaken: the task is not open to them.
        """
        with self.database.write() as connection:
            return queue.take_seat(connection, self._task(connection, task), annotator, self.policy, self.now())

    def held(self, annotator: str, project: str = "") -> list[Lease]:
        """Leases of an annotator that have not expired, the oldest first; of one project, or of all."""
        table = schema.leases.c
        with self.database.read() as connection:
            found = rows.load_leases(connection, table.annotator == annotator, table.deadline > self.now())
            return [lease for lease in found if project in ("", self._task(connection, lease.task).project)]

    def give_back(self, task: str, annotator: str) -> None:
        """Let others have the seat of a lease; without one nothing happens."""
        with self.database.write() as connection:
            queue.give_back(connection, self._task(connection, task), annotator, self.now())

    # The log

    def submit(self, given: Submission) -> Event:
        """Record a judgement, a pass or a remark. The same submission again gives the event that is there.

        A judgement needs a lease; one that has expired still does while a seat is free.

        Raises:
            FeedbackError: the body is not what the task asks for.
            AlreadyAnswered, KeyReused, NotAllowed, NotFound, SeatTaken: as their names say.
        """
        if given.latency is not None and not 0 <= given.latency < math.inf:
            raise FeedbackError(f"latency={given.latency!r}; give seconds of 0 or more, or None")
        with self.database.write() as connection:
            return self._record(connection, given, shown=True)

    def record(self, given: Sequence[Submission]) -> None:
        """Assign and submit in one transaction, all or none: for labels that were gathered elsewhere.

        Nobody was shown anything, so no order and no latency are recorded. What is in the log already is passed over.

        Raises:
            NotAllowed: an annotator is not one whose labels are imported, simulated or a judge's.
        """
        with self.database.write() as connection:
            for submission in given:
                self._record(connection, submission, shown=False)

    def _record(self, connection: Connection, given: Submission, *, shown: bool) -> Event:
        task = self._task(connection, given.task)
        fields = vars_of(given) | {"body": bodies.check(given.kind, given.body, task), "target": 0}
        latency, guideline = fields.pop("latency"), fields.pop("guideline") or task.guideline
        if known := rows.known_event(connection, fields):
            return known
        if not shown and rows.load_annotator(connection, given.annotator).nature == "human":
            raise NotAllowed(f"{given.annotator} is a person of this store; people submit what was handed out to them")
        now, remark = self.now(), given.kind in REMARKS
        seats = queue.seats(connection, task, given.annotator, now)
        lease = seats.lease
        seats.require_member()
        if not (remark and seats.done):
            seats.require_open()
            if lease is None and shown:
                raise NotAllowed(f"task {given.task} was not handed out to {given.annotator}; ask for the next task")
        if latency is None:
            latency = -1.0 if lease is None or lease.granted > now else now - lease.granted
        fields |= {"order": lease.order if lease else (), "latency": latency, "guideline": guideline, "project": task.project}
        event = rows.add_event(connection, seats.length, now, fields)
        if not remark:
            answer = {"task": task.id, "annotator": given.annotator, "event": event.sequence, "kind": given.kind}
            answer["project"] = task.project
            connection.execute(schema.answers.insert().values(answer))
            leases = schema.leases
            connection.execute(leases.delete().where(leases.c.task == task.id, leases.c.annotator == given.annotator))
            queue.settle(connection, seats, seats.judged + (given.kind in JUDGEMENTS), seats.others)
            if task.purpose == "gold" and shown:
                policy = projects.load(connection, task.project).within(self.policy)
                admission.review(connection, policy, given.annotator, task.project, now)
        return event

    def undo(self, annotator: str, key: str, target: int = 0, project: str = "") -> Event:
        """Take back one's own event, by default the newest in force (of a project), and lease its task to the annotator again.

        Raises:
            NotAllowed: they are no member of its project any more.
            NothingToUndo: there is no such event of theirs, or it is taken back already.
        """
        fields = {"key": key, "kind": "undo", "annotator": annotator, "target": target}
        with self.database.write() as connection:
            return self._withdraw(connection, fields, {}, project)

    def retract(self, administrator: str, key: str, target: int, reason: str) -> Event:
        """Take somebody's event back for good: its seat is free for others, its author is not asked again.

        Raises:
            NotAllowed: only administrators retract.
            NothingToUndo: there is no such event, or it is taken back already.
        """
        fields = {"key": key, "kind": "retract", "annotator": administrator, "target": target}
        with self.database.write() as connection:
            rows.require_admin(connection, administrator)
            return self._withdraw(connection, fields, {"reason": reason})

    def exclude(
        self, administrator: str, key: str, annotator: str, reason: str, since: float = 0.0, until: float | None = None,
        project: str = "",
    ) -> Event:  # fmt: skip
        """Let what somebody said in a project (or in all) from ``since`` to before ``until`` (seconds of the store's clock;
        None: for ever) not count.

        It stays in the log and on its seats, and :meth:`include` lets it count again. What is exported after it has another
        content hash.

        Raises:
            NotAllowed: only administrators exclude.
            NotFound: there is no such annotator or project.
            FeedbackError: the time ends before it begins.
        """
        if until is not None and not since < until:
            raise FeedbackError(f"since={since:g}, until={until:g}: the time ends before it begins")
        body = {"annotator": annotator, "since": float(since), "until": until, "reason": reason}
        with self.database.write() as connection:
            rows.load_annotator(connection, annotator)
            if project:
                projects.load(connection, project)
            return self._decide(connection, administrator, key, body, kind="exclude", target=0, project=project)

    def include(self, administrator: str, key: str, target: int, reason: str) -> Event:
        """Take an exclusion back: what it left out counts again.

        Raises:
            NotAllowed: only administrators include.
            NothingToUndo: the target is no exclusion in force.
        """
        table, later = schema.exclusions.c, schema.exclusions.alias()
        in_force = (table.sequence == target) & (table.kind == "exclude")
        with self.database.write() as connection:
            standing = ~sa.exists().where(later.c.target == target, later.c.key != key)
            found = connection.execute(sa.select(table.person, table.project).where(in_force, standing)).first()
            if found is None:
                raise NothingToUndo(f"event {target} is no exclusion in force")
            body, project = {"annotator": found.person, "reason": reason}, found.project
            return self._decide(connection, administrator, key, body, kind="include", target=target, project=project)

    def _decide(self, connection: Connection, administrator: str, key: str, body: dict[str, Any], **more: Any) -> Event:
        """Append what an administrator decides about a person; again, it gives the event that is there."""
        rows.require_admin(connection, administrator)
        fields = {"key": key, "annotator": administrator, "body": body, "task": "", **more}
        return rows.known_event(connection, fields) or rows.add_decision(connection, self.now(), **fields)

    def _withdraw(self, connection: Connection, fields: dict[str, Any], body: dict[str, str], project: str = "") -> Event:
        if known := rows.known_event(connection, fields):
            return known
        event = self._standing(connection, fields["kind"], fields["annotator"], fields["target"], project)
        task, now = self._task(connection, event.task), self.now()
        seats = queue.seats(connection, task, event.annotator, now)
        if fields["kind"] == "undo":
            seats.require_member()
        fields |= {"task": event.task, "project": task.project, "guideline": task.guideline, "target": event.sequence}
        made = rows.add_event(connection, seats.length, now, {**fields, "body": body, "order": (), "latency": -1.0})
        if event.kind in REMARKS:
            return made
        table, author, judgement = schema.answers, event.annotator, event.kind in JUDGEMENTS
        mine = (table.c.task == event.task) & (table.c.annotator == author)
        queue.settle(connection, seats, seats.judged - judgement, seats.others)
        if made.kind == "retract":
            connection.execute(table.update().where(mine).values(event=made.sequence, kind="retract"))
            return made
        connection.execute(table.delete().where(mine))
        # The seat goes back to the annotator in the same transaction, so that nobody takes it between undo and new answer.
        # A task that was only passed may be full by now; then there is no seat to give.
        if judgement or seats.free:
            queue.take_seat(connection, task, author, self.policy, now)
        return made

    def _standing(self, connection: Connection, kind: str, annotator: str, target: int, project: str) -> Event:
        """The event to take back: the target if it is in force and may be taken back so, or the annotator's newest (there)."""
        table = schema.events.c
        later = schema.events.alias()
        in_force = [table.kind.in_(JUDGEMENTS | PASSES | REMARKS), ~sa.exists().where(later.c.target == table.sequence)]
        if kind == "undo":
            in_force.append(table.annotator == annotator)
        if project:
            in_force.append(sa.exists().where(schema.tasks.c.id == table.task, schema.tasks.c.project == project))
        query = sa.select(sa.func.max(table.sequence)).where(*in_force, *([table.sequence == target] if target else []))
        found = connection.execute(query).scalar()
        if found is None:
            what = f"event {target}" if target else "any event"
            raise NothingToUndo(f"{annotator}: {what} in force and may be taken back is not in the log")
        return rows.load_events(connection, table.sequence == found)[0]

    def events(self, after: int = 0, until: int | None = None) -> list[Event]:
        """Events with ``after < sequence <= until``, in the order of the log."""
        with self.database.read() as connection:
            return rows.load_log(connection, after, until)

    def length(self) -> int:
        """Events in the log; its newest event has this sequence."""
        with self.database.read() as connection:
            return connection.execute(sa.select(schema.head.c.events)).scalar_one()

    def state(self, until: int | None = None) -> State:
        """What is in force after the log, or after its first ``until`` events."""
        return fold(self.events(until=until))

    def verify(self) -> State:
        """Compare the database's indices with the log, and give the state.

        Raises:
            FeedbackError: they disagree; names a task.
        """
        with self.database.read() as connection:
            return compared(connection, self.now())

    def _task(self, connection: Connection, name: str) -> Task:
        task = self._tasks.get(name)
        if task is None:
            task = self._tasks[name] = rows.load_task(connection, name)
            if len(self._tasks) > CACHED_TASKS:
                self._tasks.popitem(last=False)
        return task
