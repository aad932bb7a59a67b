"""Whether the database's indices say what the log says."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from penstock.feedback import rows, schema
from penstock.feedback.errors import FeedbackError
from penstock.feedback.records import JUDGEMENTS
from penstock.feedback.state import State, fold


def compared(connection: Connection, now: float) -> State:
    """The state of the log, if the indices agree with it. Raises FeedbackError: they disagree; names a task."""
    events = rows.load_log(connection)
    state = fold(events)
    expected = {place: event.kind for place, event in state.standing.items()} | dict.fromkeys(state.retracted, "retract")
    found = {(row.task, row.annotator): row.kind for row in connection.execute(sa.select(schema.answers))}
    judged = {row.task: row.judgements for row in connection.execute(sa.select(schema.progress))}
    # By the latest clock that the index was kept by: this one may have gone back since.
    granted = connection.execute(sa.select(sa.func.max(schema.leases.c.granted))).scalar() or 0.0
    lost = misplaced(connection, max([now, granted, *(event.time for event in events)]))
    counted = dict.fromkeys(judged, 0)
    for event in state.standing.values():
        counted[event.task] += event.kind in JUDGEMENTS
    wrong = {place for place, _ in expected.items() ^ found.items()} | dict(counted.items() ^ judged.items()).keys()
    if wrong or lost:
        raise FeedbackError(f"the store's indices disagree with its log, for one on {sorted(map(str, wrong or {lost}))[0]}")
    return state


def misplaced(connection: Connection, now: float) -> str | None:
    """A task that the queue's index hides though it has a free seat, or offers though it has none; None if there is none."""
    leases, progress, tasks = schema.leases, schema.progress, schema.tasks
    held = sa.select(sa.func.count()).where(leases.c.task == progress.c.task, leases.c.deadline > now).scalar_subquery()
    limited, judged = tasks.c.overlap > 0, progress.c.judgements
    closed, full = limited & (judged >= tasks.c.overlap), limited & (judged + held >= tasks.c.overlap)
    offered = progress.c.free_at <= now
    wrong = (progress.c.open & closed) | (~progress.c.open & ~closed) | (progress.c.open & (offered & full | ~offered & ~full))
    answers = schema.answers
    wrong |= (progress.c.project != tasks.c.project) | sa.exists().where(
        answers.c.task == progress.c.task, answers.c.project != progress.c.project
    )
    query = sa.select(progress.c.task).join(tasks, tasks.c.id == progress.c.task).where(wrong)
    return connection.execute(query.limit(1)).scalar()
