"""Records to rows of tables and back. Every function takes a connection inside a transaction of ``database.py``."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NoReturn

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from penstock.feedback import schema
from penstock.feedback.errors import FeedbackError, NotFound
from penstock.feedback.records import Annotator, Event, Item, Lease, Response, Task, canonical, require_name
from penstock.feedback.statements import Statement, Write

ANNOTATOR_FIELDS = tuple(Annotator.__dataclass_fields__)

KEY: sa.BindParameter[str] = sa.bindparam("key")
HAS_TASK = Statement(sa.select(schema.tasks.c.id).where(schema.tasks.c.id == KEY))
HAS_ITEM = Statement(sa.select(schema.items.c.id).where(schema.items.c.id == KEY))
HAS_BLOB = Statement(sa.select(schema.blobs.c.hash).where(schema.blobs.c.hash == KEY))
TASK_BODY = Statement(sa.select(schema.tasks.c.body).where(schema.tasks.c.id == KEY))
ITEM_BODY = Statement(sa.select(schema.items.c.body).where(schema.items.c.id == KEY))
BLOB_BODY = Statement(sa.select(schema.blobs.c.body).where(schema.blobs.c.hash == KEY))
ANNOTATOR = Statement(
    sa.select(*(schema.annotators.c[name] for name in ANNOTATOR_FIELDS)).where(schema.annotators.c.name == KEY)
)
NEXT_TASK = Statement(schema.head.update().values(tasks=schema.head.c.tasks + 1).returning(schema.head.c.tasks))
LENGTHEN = Statement(schema.head.update().values(events=sa.bindparam("length")))
ADD_TASK, ADD_PROGRESS = Statement(schema.tasks.insert()), Statement(schema.progress.insert())
ADD_ITEM, ADD_BLOB = Statement(schema.items.insert()), Statement(schema.blobs.insert())
ADD_EVENT, ADD_ANSWER = Statement(schema.events.insert()), Statement(schema.answers.insert())
EVENT_OF_KEY = Statement(sa.select(schema.events.c.sequence).where(schema.events.c.key == KEY))
LEASE = Statement(
    sa.select(schema.leases.c.shown, schema.leases.c.granted, schema.leases.c.deadline).where(
        schema.leases.c.task == sa.bindparam("task"), schema.leases.c.annotator == sa.bindparam("annotator")
    )
)


def save_task(connection: Connection, task: Task, now: float) -> bool:
    """Add a task with its item and their blobs; whether it was new. What is there already is left as it is."""
    name = task.id
    if HAS_TASK.row(connection, key=name):
        return False
    _save_item(connection, task.item)
    body = task.plain()
    ADD_TASK.run(
        connection,
        id=name,
        item=body["item"],
        purpose=task.purpose,
        origin=task.origin,
        reserved=task.reserved,
        overlap=task.overlap,
        body=canonical(body),
        added=now,
    )
    ((number,),) = NEXT_TASK.rows(connection)
    ADD_PROGRESS.run(
        connection,
        task=name,
        number=number,
        purpose=task.purpose,
        urgency=-task.priority,
        judgements=0,
        open=True,
        free_at=0.0,
    )
    return True


def _save_item(connection: Connection, item: Item) -> None:
    name = item.id
    if HAS_ITEM.row(connection, key=name):
        return
    for response in item.responses:
        if not HAS_BLOB.row(connection, key=response.id):
            ADD_BLOB.run(connection, hash=response.id, body=response.body)
    ADD_ITEM.run(connection, id=name, body=canonical(item.plain()))


def load_task(connection: Connection, name: str) -> Task:
    """The task of a name, with its item.

    Raises:
        NotFound: there is none.
        FeedbackError: a blob does not have the content that its name says.
    """
    found = TASK_BODY.row(connection, key=name) or no_task(name)
    fields = json.loads(found[0])
    fields["item"] = _load_item(connection, fields["item"])
    fields["axes"], fields["scale"] = tuple(fields["axes"]), tuple(fields["scale"])
    return Task(**fields)


def no_task(name: str) -> NoReturn:
    """Raises NotFound."""
    raise NotFound(f"there is no task {name!r:.60}; it belongs to another store, perhaps")


def _load_item(connection: Connection, name: str) -> Item:
    ((body,),) = ITEM_BODY.rows(connection, key=name)
    fields = json.loads(body)
    fields["responses"] = tuple(_load_response(connection, key) for key in fields["responses"])
    return Item(**fields)


def _load_response(connection: Connection, key: str) -> Response:
    ((body,),) = BLOB_BODY.rows(connection, key=key)
    if hashlib.sha256(body).hexdigest() != key:
        raise FeedbackError(f"blob {key[:12]} does not have the content of its name; restore the store from a backup")
    fields = json.loads(body)
    return Response(**{**fields, "tokens": tuple(fields["tokens"]), "logp": tuple(fields["logp"])})


def save_annotator(connection: Connection, annotator: Annotator, now: float) -> None:
    """Add an annotator, or replace what is known of one; the nature of one who is there can never change.

    Raises:
        FeedbackError: the nature would change.
    """
    row: dict[str, Any] = {**asdict(annotator), "attributes": canonical(dict(annotator.attributes))}
    table = schema.annotators
    present = connection.execute(sa.select(table.c.nature).where(table.c.name == annotator.name)).scalar()
    if present is None:
        connection.execute(table.insert(), {**row, "added": now})
    elif present != annotator.nature:
        raise FeedbackError(f"annotator {annotator.name} is {present} and stays so; enrol another name as {annotator.nature}")
    else:
        connection.execute(table.update().where(table.c.name == annotator.name).values(row))


def load_annotator(connection: Connection, name: str) -> Annotator:
    """The annotator of a name.

    Raises:
        NotFound: there is none.
    """
    return _annotator(ANNOTATOR.row(connection, key=name) or nobody(name))


def nobody(name: str) -> NoReturn:
    """Raises NotFound."""
    raise NotFound(f"there is no annotator {name!r:.60}; enrol them first")


def load_annotators(connection: Connection) -> list[Annotator]:
    """All annotators, by name."""
    columns = [schema.annotators.c[name] for name in ANNOTATOR_FIELDS]
    return [_annotator(tuple(row)) for row in connection.execute(sa.select(*columns).order_by(schema.annotators.c.name))]


def _annotator(row: Sequence[Any]) -> Annotator:
    fields = dict(zip(ANNOTATOR_FIELDS, row, strict=True))
    return Annotator(**{**fields, "attributes": json.loads(fields["attributes"]), "enabled": bool(fields["enabled"])})


def next_event(length: int, now: float, fields: Mapping[str, Any]) -> tuple[Event, list[Write]]:
    """The event after a log of that length, and what writes it. Whoever read the length holds the head until they are run."""
    require_name(fields["key"], "idempotency key")
    event = Event(sequence=length + 1, time=now, **fields)
    row = {name: getattr(event, name) for name in Event.__dataclass_fields__ if name != "order"}
    row |= {"body": canonical(dict(event.body)), "shown": canonical(list(event.order))}
    return event, [LENGTHEN.with_values(length=event.sequence), ADD_EVENT.with_values(**row)]


def load_events(connection: Connection, *conditions: sa.ColumnElement[bool]) -> list[Event]:
    """Events that fulfil the conditions, in the order of the log."""
    query = sa.select(schema.events).where(*conditions).order_by(schema.events.c.sequence)
    return [_event(row) for row in connection.execute(query)]


def event_of_key(connection: Connection, key: str) -> Event | None:
    """The event that an idempotency key names, if there is one."""
    row = EVENT_OF_KEY.row(connection, key=key)
    return None if row is None else load_events(connection, schema.events.c.sequence == row[0])[0]


def load_lease(connection: Connection, task: str, annotator: str) -> Lease | None:
    """The annotator's lease of a task, expired or not."""
    row = LEASE.row(connection, task=task, annotator=annotator)
    return None if row is None else Lease(task, annotator, tuple(json.loads(row[0])), *row[1:])


def _event(row: Row[Any]) -> Event:
    fields = {name: getattr(row, name) for name in Event.__dataclass_fields__ if name != "order"}
    return Event(**{**fields, "body": json.loads(row.body), "order": tuple(json.loads(row.shown))})


def _lease(row: Row[Any]) -> Lease:
    return Lease(row.task, row.annotator, tuple(json.loads(row.shown)), row.granted, row.deadline)


def load_leases(connection: Connection, *conditions: sa.ColumnElement[bool]) -> Iterable[Lease]:
    """Leases that fulfil the conditions, the oldest first."""
    query = sa.select(schema.leases).where(*conditions).order_by(schema.leases.c.granted, schema.leases.c.task)
    return [_lease(row) for row in connection.execute(query)]
