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


def save_task(connection: Connection, task: Task, now: float) -> bool:
    """Add a task with its item and their blobs; whether it was new. What is there already is left as it is."""
    name = task.id
    if connection.execute(sa.select(schema.tasks.c.id).where(schema.tasks.c.id == name)).first():
        return False
    _save_item(connection, task.item)
    body = task.plain()
    connection.execute(
        schema.tasks.insert(),
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
    number = connection.execute(sa.select(schema.head.c.tasks)).scalar_one() + 1
    connection.execute(schema.head.update().values(tasks=number))
    connection.execute(
        schema.progress.insert(),
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
    if connection.execute(sa.select(schema.items.c.id).where(schema.items.c.id == name)).first():
        return
    for response in item.responses:
        body = canonical(asdict(response)).encode()
        key = hashlib.sha256(body).hexdigest()
        if not connection.execute(sa.select(schema.blobs.c.hash).where(schema.blobs.c.hash == key)).first():
            connection.execute(schema.blobs.insert(), {"hash": key, "body": body})
    connection.execute(schema.items.insert(), {"id": name, "body": canonical(item.plain())})


def load_task(connection: Connection, name: str) -> Task:
    """The task of a name, with its item.

    Raises:
        NotFound: there is none.
        FeedbackError: a blob does not have the content that its name says.
    """
    found = connection.execute(sa.select(schema.tasks.c.body).where(schema.tasks.c.id == name)).scalar()
    if found is None:
        raise NotFound(f"there is no task {name!r:.60}; it belongs to another store, perhaps")
    fields = json.loads(found)
    fields["item"] = _load_item(connection, fields["item"])
    fields["axes"], fields["scale"] = tuple(fields["axes"]), tuple(fields["scale"])
    return Task(**fields)


def _load_item(connection: Connection, name: str) -> Item:
    fields = json.loads(connection.execute(sa.select(schema.items.c.body).where(schema.items.c.id == name)).scalar_one())
    fields["responses"] = tuple(_load_response(connection, key) for key in fields["responses"])
    return Item(**fields)


def _load_response(connection: Connection, key: str) -> Response:
    body = connection.execute(sa.select(schema.blobs.c.body).where(schema.blobs.c.hash == key)).scalar_one()
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
    row = connection.execute(sa.select(schema.annotators).where(schema.annotators.c.name == name)).first()
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
    sequence = connection.execute(sa.select(schema.head.c.events)).scalar_one() + 1
    connection.execute(schema.head.update().values(events=sequence))
    event = Event(sequence=sequence, time=now, **fields)
    row = {name: getattr(event, name) for name in Event.__dataclass_fields__ if name != "order"}
    row |= {"body": canonical(dict(event.body)), "shown": canonical(list(event.order))}
    connection.execute(schema.events.insert(), row)
    return event


def load_events(connection: Connection, *conditions: sa.ColumnElement[bool]) -> list[Event]:
    """Events that fulfil the conditions, in the order of the log."""
    query = sa.select(schema.events).where(*conditions).order_by(schema.events.c.sequence)
    return [_event(row) for row in connection.execute(query)]


def _event(row: Row[Any]) -> Event:
    fields = {name: getattr(row, name) for name in Event.__dataclass_fields__ if name != "order"}
    return Event(**{**fields, "body": json.loads(row.body), "order": tuple(json.loads(row.shown))})


def lease_of(row: Row[Any]) -> Lease:
    return Lease(row.task, row.annotator, tuple(json.loads(row.shown)), row.granted, row.deadline)


def load_leases(connection: Connection, *conditions: sa.ColumnElement[bool]) -> Iterable[Lease]:
    """Leases that fulfil the conditions, the oldest first."""
    query = sa.select(schema.leases).where(*conditions).order_by(schema.leases.c.granted, schema.leases.c.task)
    return [lease_of(row) for row in connection.execute(query)]
