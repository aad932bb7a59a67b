"""Records to rows of tables and back. Every function takes a connection inside a transaction of ``database.py``."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from penstock.feedback import schema
from penstock.feedback.errors import FeedbackError, NotFound
from penstock.feedback.records import Annotator, Event, Item, Lease, Response, Task, canonical, require_name

# Statements are built once: building one costs more than running it.
HAS_TASK = sa.select(schema.tasks.c.id).where(schema.tasks.c.id == sa.bindparam("key"))
HAS_ITEM = sa.select(schema.items.c.id).where(schema.items.c.id == sa.bindparam("key"))
HAS_BLOB = sa.select(schema.blobs.c.hash).where(schema.blobs.c.hash == sa.bindparam("key"))
TASK_BODY = sa.select(schema.tasks.c.body).where(schema.tasks.c.id == sa.bindparam("key"))
ITEM_BODY = sa.select(schema.items.c.body).where(schema.items.c.id == sa.bindparam("key"))
BLOB_BODY = sa.select(schema.blobs.c.body).where(schema.blobs.c.hash == sa.bindparam("key"))
ANNOTATOR = sa.select(schema.annotators).where(schema.annotators.c.name == sa.bindparam("key"))
NEXT_TASK = schema.head.update().values(tasks=schema.head.c.tasks + 1).returning(schema.head.c.tasks)
NEXT_EVENT = schema.head.update().values(events=schema.head.c.events + 1).returning(schema.head.c.events)
ADD_TASK, ADD_PROGRESS = schema.tasks.insert(), schema.progress.insert()
ADD_ITEM, ADD_BLOB, ADD_EVENT = schema.items.insert(), schema.blobs.insert(), schema.events.insert()
EVENT_OF_KEY = sa.select(schema.events).where(schema.events.c.key == sa.bindparam("key"))
LEASE = sa.select(schema.leases).where(
    schema.leases.c.task == sa.bindparam("task"), schema.leases.c.annotator == sa.bindparam("annotator")
)


def save_task(connection: Connection, task: Task, now: float) -> bool:
    """Add a task with its item and their blobs; whether it was new. What is there already is left as it is."""
    name = task.id
    if connection.execute(HAS_TASK, {"key": name}).first():
        return False
    _save_item(connection, task.item)
    body = task.plain()
    connection.execute(
        ADD_TASK,
        {
            "id": name,
            "item": body["item"],
            "purpose": task.purpose,
            "origin": task.origin,
            "reserved": task.reserved,
            "overlap": task.overlap,
            "body": canonical(body),
            "added": now,
        },
    )
    number = connection.execute(NEXT_TASK).scalar_one()
    connection.execute(
        ADD_PROGRESS,
        {
            "task": name,
            "number": number,
            "purpose": task.purpose,
            "urgency": -task.priority,
            "judgements": 0,
            "open": True,
        },
    )
    return True


def _save_item(connection: Connection, item: Item) -> None:
    name = item.id
    if connection.execute(HAS_ITEM, {"key": name}).first():
        return
    for response in item.responses:
        if not connection.execute(HAS_BLOB, {"key": response.id}).first():
            connection.execute(ADD_BLOB, {"hash": response.id, "body": response.body})
    connection.execute(ADD_ITEM, {"id": name, "body": canonical(item.plain())})


def load_task(connection: Connection, name: str) -> Task:
    """The task of a name, with its item.

    Raises:
        NotFound: there is none.
        FeedbackError: a blob does not have the content that its name says.
    """
    found = connection.execute(TASK_BODY, {"key": name}).scalar()
    if found is None:
        raise NotFound(f"there is no task {name!r:.60}; it belongs to another store, perhaps")
    fields = json.loads(found)
    fields["item"] = _load_item(connection, fields["item"])
    fields["axes"], fields["scale"] = tuple(fields["axes"]), tuple(fields["scale"])
    return Task(**fields)


def _load_item(connection: Connection, name: str) -> Item:
    fields = json.loads(connection.execute(ITEM_BODY, {"key": name}).scalar_one())
    fields["responses"] = tuple(_load_response(connection, key) for key in fields["responses"])
    return Item(**fields)


def _load_response(connection: Connection, key: str) -> Response:
    body = connection.execute(BLOB_BODY, {"key": key}).scalar_one()
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
    row = connection.execute(ANNOTATOR, {"key": name}).first()
    if row is None:
        raise NotFound(f"there is no annotator {name!r:.60}; enrol them first")
    return _annotator(row)


def load_annotators(connection: Connection) -> list[Annotator]:
    """All annotators, by name."""
    return [_annotator(row) for row in connection.execute(sa.select(schema.annotators).order_by(schema.annotators.c.name))]


def _annotator(row: Row[Any]) -> Annotator:
    fields = {name: getattr(row, name) for name in Annotator.__dataclass_fields__}
    return Annotator(**{**fields, "attributes": json.loads(row.attributes)})


def append(connection: Connection, now: float, fields: Mapping[str, Any]) -> Event:
    """Write the next event of the log. The caller holds the head."""
    require_name(fields["key"], "idempotency key")
    sequence = connection.execute(NEXT_EVENT).scalar_one()
    event = Event(sequence=sequence, time=now, **fields)
    row = {name: getattr(event, name) for name in Event.__dataclass_fields__ if name != "order"}
    row |= {"body": canonical(dict(event.body)), "shown": canonical(list(event.order))}
    connection.execute(ADD_EVENT, row)
    return event


def load_events(connection: Connection, *conditions: sa.ColumnElement[bool]) -> list[Event]:
    """Events that fulfil the conditions, in the order of the log."""
    query = sa.select(schema.events).where(*conditions).order_by(schema.events.c.sequence)
    return [_event(row) for row in connection.execute(query)]


def event_of_key(connection: Connection, key: str) -> Event | None:
    """The event that an idempotency key names, if there is one."""
    row = connection.execute(EVENT_OF_KEY, {"key": key}).first()
    return None if row is None else _event(row)


def load_lease(connection: Connection, task: str, annotator: str) -> Lease | None:
    """The annotator's lease of a task, expired or not."""
    row = connection.execute(LEASE, {"task": task, "annotator": annotator}).first()
    return None if row is None else _lease(row)


def _event(row: Row[Any]) -> Event:
    fields = {name: getattr(row, name) for name in Event.__dataclass_fields__ if name != "order"}
    return Event(**{**fields, "body": json.loads(row.body), "order": tuple(json.loads(row.shown))})


def _lease(row: Row[Any]) -> Lease:
    return Lease(row.task, row.annotator, tuple(json.loads(row.shown)), row.granted, row.deadline)


def load_leases(connection: Connection, *conditions: sa.ColumnElement[bool]) -> Iterable[Lease]:
    """Leases that fulfil the conditions, the oldest first."""
    query = sa.select(schema.leases).where(*conditions).order_by(schema.leases.c.granted, schema.leases.c.task)
    return [_lease(row) for row in connection.execute(query)]
