"""Records to rows of tables and back. Every function takes a connection inside a transaction of ``database.py``."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from penstock.core.blobs import Blob
from penstock.feedback import schema
from penstock.feedback.errors import FeedbackError, KeyReused, NotAllowed, NotFound
from penstock.feedback.records import (
    EXCLUSIONS,
    Annotator,
    Event,
    Item,
    Lease,
    Response,
    Task,
    canonical,
    require_name,
    vars_of,
)

ReadBlob = Callable[[Blob], bytes]
"""Gives the bytes of a blob; raises DataError where it cannot."""

STORE = "penstock:store"
"""In whose name the log has what the store itself decides about no person; it is no person either."""
NOT_SHOWN: Mapping[str, Any] = {"order": (), "latency": -1.0, "guideline": ""}
"""Fields of an event that answers nothing which was shown."""
_ANNOTATORS = sa.select(*(schema.annotators.c[name] for name in Annotator.__dataclass_fields__))


def save_task(connection: Connection, task: Task, now: float, read: ReadBlob | None = None) -> bool:
    """Add a task with its item and their blobs; whether it was new. What is there already is left as it is.

    Raises:
        DataError, FeedbackError: a blob is not in the store, and ``read`` does not give its bytes.
    """
    name = task.id
    if has(connection, schema.tasks.c.id, name):
        return False
    _save_item(connection, task.item, read)
    body = task.plain()
    looked_up = {column: body[column] for column in ("item", "purpose", "origin", "reserved", "overlap")}
    made = {"id": name, "body": canonical(body), "added": now, "project": task.project, **looked_up}
    connection.execute(schema.tasks.insert().values(made))
    counted = schema.head.update().values(tasks=schema.head.c.tasks + 1).returning(schema.head.c.tasks)
    number = connection.execute(counted).scalar_one()
    place = {"task": name, "number": number, "purpose": task.purpose, "urgency": -task.priority, "project": task.project}
    connection.execute(schema.progress.insert().values(judgements=0, open=True, free_at=0.0, **place))
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


def _save_item(connection: Connection, item: Item, read: ReadBlob | None) -> None:
    name = item.id
    if has(connection, schema.items.c.id, name):
        return
    for response in item.responses:
        if not has(connection, schema.blobs.c.hash, response.id):
            connection.execute(schema.blobs.insert().values(hash=response.id, body=response.body))
    for blob in item.every_blob:
        if not has(connection, schema.blobs.c.hash, blob.hash):
            if read is None:
                raise FeedbackError(f"blob {blob.hash[:12]} ({blob.kind}) is not in this store; give its bytes too")
            content = read(blob)
            blob.check(content, "its source")
            connection.execute(schema.blobs.insert().values(hash=blob.hash, body=content))
    connection.execute(schema.items.insert().values(id=name, body=canonical(item.plain())))


def load_task(connection: Connection, name: str) -> Task:
    """The task of a name, with its item.

    Raises:
        NotFound: there is none.
        FeedbackError: a blob does not have the content that its name says.
    """
    fields = json.loads(_body(connection, schema.tasks.c.body, schema.tasks.c.id, name) or no_task(name))
    task = Task.of(fields, _load_item(connection, fields["item"]))
    task.__dict__["id"] = name  # it keeps its name when a person's is taken out of it (deletion.py)
    return task


def no_task(name: str) -> NoReturn:
    """Raises NotFound."""
    raise NotFound(f"there is no task {name!r:.60}; it belongs to another store, perhaps")


def _load_item(connection: Connection, name: str) -> Item:
    fields = json.loads(_body(connection, schema.items.c.body, schema.items.c.id, name))
    return Item.of(fields, tuple(_load_response(connection, key) for key in fields["responses"]))


def load_blob(connection: Connection, blob: Blob) -> bytes:
    """The bytes of an image, sound or video.

    Raises:
        NotFound: they are not in the store.
        DataError: they were damaged.
    """
    content = _body(connection, schema.blobs.c.body, schema.blobs.c.hash, blob.hash)
    if content is None:
        raise NotFound(f"blob {blob.hash[:12]} is not in this store")
    blob.check(content, "the store")
    return bytes(content)


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
    """The annotator of a name. Raises NotFound: there is none."""
    return next(iter(load_annotators(connection, schema.annotators.c.name == name)), None) or nobody(name)


def require_admin(connection: Connection, name: str) -> None:
    """Raises NotAllowed, NotFound: the name is no administrator's who is switched on."""
    who = load_annotator(connection, name)
    if who.role != "admin" or not who.enabled:
        raise NotAllowed(f"{name} is no administrator; only one may do this")


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
    if event.kind in EXCLUSIONS:
        row = {name: row[name] for name in schema.exclusions.c.keys() if name != "person"}  # noqa: SIM118 - it is no dict
        connection.execute(schema.exclusions.insert().values(**row, person=event.body["annotator"]))
    else:
        del row["project"]  # its task's
        connection.execute(schema.events.insert().values(row))
    return event


def add_decision(connection: Connection, now: float, kind: str, annotator: str, **fields: Any) -> Event:
    """Append what an administrator, or the store, decides: nothing was shown to anybody. Without a ``key`` it has a new one,
    without a ``project`` it is about all of them."""
    length = connection.execute(sa.select(schema.head.c.events)).scalar_one()
    made = {"key": f"{kind}:{length + 1}", "task": "", "target": 0, "project": "", **NOT_SHOWN, **fields}
    return add_event(connection, length, now, {"kind": kind, "annotator": annotator, **made})


def add_promotion(connection: Connection, now: float, by: str, task: Task, reason: str) -> Event:
    """Append that a task is gold, which so is known before anybody answers it."""
    if by == STORE and not has(connection, schema.annotators.c.name, STORE):
        save_annotator(connection, Annotator(STORE, nature="imported", enabled=False), now)
    about = {"task": task.id, "project": task.project, "body": {"reason": reason}}
    return add_decision(connection, now, "promote", by, **about)


def load_events(connection: Connection, *conditions: sa.ColumnElement[bool]) -> list[Event]:
    """Events that fulfil the conditions, in the order of the log."""
    of_task = sa.select(schema.events, schema.tasks.c.project).join(schema.tasks, schema.tasks.c.id == schema.events.c.task)
    query = of_task.where(*conditions).order_by(schema.events.c.sequence)
    return [_event(row) for row in connection.execute(query)]


def known_event(connection: Connection, given: Mapping[str, Any]) -> Event | None:
    """The event that has the key of these fields already, if its content is the same. Raises KeyReused if it is not."""
    found, same = load_events(connection, schema.events.c.key == given["key"]), True
    found += load_exclusions(connection, schema.exclusions.c.key == given["key"])
    if not found:
        return None
    event = found[0]
    for name, value in given.items():
        present = getattr(event, name)
        if name == "body":
            same = same and canonical(dict(present)) == canonical(value)
        elif not (name == "target" and event.kind == "undo" and not value):  # an undo of the newest names no target
            same = same and present == value
    if not same:
        raise KeyReused(f"key {given['key']} named event {event.sequence} with other content; make a new key for each act")
    return event


def load_log(connection: Connection, after: int = 0, until: int | None = None) -> list[Event]:
    """Everything with ``after < sequence <= until``, in the order of the log."""
    found: list[Event] = []
    for table, load in ((schema.events, load_events), (schema.exclusions, load_exclusions)):
        sequence = table.c.sequence
        found += load(connection, sequence > after, *([] if until is None else [sequence <= until]))
    return sorted(found, key=lambda event: event.sequence)


def load_exclusions(connection: Connection, *conditions: sa.ColumnElement[bool]) -> list[Event]:
    """Exclusions, and what took them back, that fulfil the conditions, in the order of the log."""
    query = sa.select(schema.exclusions).where(*conditions).order_by(schema.exclusions.c.sequence)
    return [_event(row) for row in connection.execute(query)]


def _event(row: Row[Any]) -> Event:
    """The event of a line; one about a person has no task and was shown to nobody."""
    fields = {**NOT_SHOWN, "task": "", "shown": "[]"} | row._asdict()
    fields.pop("person", None)
    order = tuple(json.loads(fields.pop("shown")))
    return Event(**fields | {"body": json.loads(row.body), "order": order})


def load_leases(connection: Connection, *conditions: sa.ColumnElement[bool]) -> list[Lease]:
    """Leases that fulfil the conditions, expired or not, the oldest first."""
    query = sa.select(schema.leases).where(*conditions).order_by(schema.leases.c.granted, schema.leases.c.task)
    return [
        Lease(row.task, row.annotator, tuple(json.loads(row.shown)), row.granted, row.deadline)
        for row in connection.execute(query)
    ]
