"""Records to rows of tables and back. Every function takes a connection inside a transaction of ``database.py``."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NoReturn

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from penstock.feedback import schema
from penstock.feedback.errors import FeedbackError, NotFound
from penstock.feedback.records import Annotator, Event, Item, Lease, Response, Task, canonical, require_name, vars_of

_ANNOTATORS = sa.select(*(schema.annotators.c[name] for name in Annotator.__dataclass_fields__))


def save_task(connection: Connection, task: Task, now: float) -> bool:
    """Add a task with its item and their blobs; whether it was new. What is there already is left as it is."""
    name = task.id
    if has(connection, schema.tasks.c.id, name):
        return False
    _save_item(connection, task.item)
    body = task.plain()
    added = schema.tasks.insert().values(
        id=name,
        item=body["item"],
        purpose=task.purpose,
        origin=task.origin,
        reserved=task.reserved,
        overlap=task.overlap,
        body=canonical(body),
        added=now,
    )
    connection.execute(added)
    counted = schema.head.update().values(tasks=schema.head.c.tasks + 1).returning(schema.head.c.tasks)
    number = connection.execute(counted).scalar_one()
    progress = schema.progress.insert().values(
        task=name,
        number=number,
        purpose=task.purpose,
        urgency=-task.priority,
        judgements=0,
        open=True,
        free_at=0.0,
    )
    connection.execute(progress)
    return True


def has(connection: Connection, column: sa.Column[str], key: str) -> bool:
    """Whether a table has a row of a key."""
    return connection.execute(sa.select(column).where(column == key)).first() is not None


def last(connection: Connection, table: sa.Table) -> int:
    """The number of a log's newest line; 0 for a log without lines."""
    return connection.execute(sa.select(sa.func.coalesce(sa.func.max(table.c.sequence), 0))).scalar_one()


def _body(connection: Connection, body: sa.Column[Any], column: sa.Column[str], key: str) -> Any:
    """The body in the row of a key; None if there is no such row."""
    return connection.execute(sa.select(body).where(column == key)).scalar()


def _save_item(connection: Connection, item: Item) -> None:
    name = item.id
    if has(connection, schema.items.c.id, name):
        return
    for response in item.responses:
        if not has(connection, schema.blobs.c.hash, response.id):
            connection.execute(schema.blobs.insert().values(hash=response.id, body=response.body))
    connection.execute(schema.items.insert().values(id=name, body=canonical(item.plain())))


def load_task(connection: Connection, name: str) -> Task:
    """The task of a name, with its item.

    Raises:
        NotFound: there is none.
        FeedbackError: a blob does not have the content that its name says.
    """
    fields = json.loads(_body(connection, schema.tasks.c.body, schema.tasks.c.id, name) or no_task(name))
    return Task.of(fields, _load_item(connection, fields["item"]))


def no_task(name: str) -> NoReturn:
    """Raises NotFound."""
    raise NotFound(f"there is no task {name!r:.60}; it belongs to another store, perhaps")


def _load_item(connection: Connection, name: str) -> Item:
    fields = json.loads(_body(connection, schema.items.c.body, schema.items.c.id, name))
    fields["responses"] = tuple(_load_response(connection, key) for key in fields["responses"])
    return Item(**fields)


def _load_response(connection: Connection, key: str) -> Response:
    body = _body(connection, schema.blobs.c.body, schema.blobs.c.hash, key)
    if hashlib.sha256(body).hexdigest() != key:
        raise FeedbackError(f"blob {key[:12]} does not have the content of its name; restore the store from a backup")
    return Response.of(json.loads(body))


def save_annotator(connection: Connection, annotator: Annotator, now: float) -> None:
    """Add an annotator, or replace what is known of one; the nature of one who is there can never change.

    Raises:
        FeedbackError: the nature would change.
    """
    row = vars_of(annotator) | {"attributes": canonical(dict(annotator.attributes))}
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
    return next(iter(load_annotators(connection, schema.annotators.c.name == name)), None) or nobody(name)


def nobody(name: str) -> NoReturn:
    """Raises NotFound."""
    raise NotFound(f"there is no annotator {name!r:.60}; enrol them first")


def load_annotators(connection: Connection, *conditions: sa.ColumnElement[bool]) -> list[Annotator]:
    """Annotators that fulfil the conditions, by name."""
    found = connection.execute(_ANNOTATORS.where(*conditions).order_by(schema.annotators.c.name))
    return [Annotator(**{**row._asdict(), "attributes": json.loads(row.attributes)}) for row in found]


def add_event(connection: Connection, length: int, now: float, fields: Mapping[str, Any]) -> Event:
    """Append an event to a log of that length; the transaction that read the length holds the log's head."""
    require_name(fields["key"], "idempotency key")
    event = Event(sequence=length + 1, time=now, **fields)
    row = vars_of(event) | {"body": canonical(dict(event.body)), "shown": canonical(list(event.order))}
    del row["order"]
    connection.execute(schema.head.update().values(events=event.sequence))
    connection.execute(schema.events.insert().values(row))
    return event


def load_events(connection: Connection, *conditions: sa.ColumnElement[bool]) -> list[Event]:
    """Events that fulfil the conditions, in the order of the log."""
    query = sa.select(schema.events).where(*conditions).order_by(schema.events.c.sequence)
    return [_event(row) for row in connection.execute(query)]


def _event(row: Row[Any]) -> Event:
    fields = row._asdict()
    order = tuple(json.loads(fields.pop("shown")))
    return Event(**{**fields, "body": json.loads(row.body), "order": order})


def load_leases(connection: Connection, *conditions: sa.ColumnElement[bool]) -> list[Lease]:
    """Leases that fulfil the conditions, expired or not, the oldest first."""
    query = sa.select(schema.leases).where(*conditions).order_by(schema.leases.c.granted, schema.leases.c.task)
    return [
        Lease(row.task, row.annotator, tuple(json.loads(row.shown)), row.granted, row.deadline)
        for row in connection.execute(query)
    ]
