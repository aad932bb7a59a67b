"""The log of what products' users did: append-only, in the same database as the votes, apart from them.

Every verb is one transaction of the store; when it returns, what it did is durable.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from penstock.feedback import rows, schema
from penstock.feedback.errors import FeedbackError, KeyReused, NotFound
from penstock.feedback.records import Response, canonical
from penstock.product import quarantine
from penstock.product.signals import Reply, Signal, SignalEvent, Standing, user_hash
from penstock.product.tenants import Tenant

if TYPE_CHECKING:
    from penstock.feedback.store import Store

DAY = 86_400.0
MOST_TOGETHER = 100
"""Signals in one call."""
USER_DAY = 50
"""Signals of one user on one day (UTC) that count; later ones are recorded as capped."""


@dataclass(frozen=True)
class Recorded:
    """What became of a signal."""

    key: str
    sequence: int
    standing: Standing


def record(store: Store, who: Tenant, given: Sequence[Signal], cap: int = USER_DAY) -> list[Recorded]:
    """Record signals of one tenant, all or none. What is in the log already is given as it is there.

    An edit goes into quarantine as a correction with it.

    Raises:
        FeedbackError: none or too many at once, or an edit that changes nothing.
        KeyReused: an id, or a response's, came before with other content.
        NotFound: a response that was never sent.
    """
    if not 0 < len(given) <= MOST_TOGETHER:
        raise FeedbackError(f"{len(given)} signals at once; send 1 to {MOST_TOGETHER}")
    with store.database.write() as connection:
        now = store.now()
        return [_record(connection, who, signal, cap, now) for signal in given]


def _record(connection: Connection, who: Tenant, given: Signal, cap: int, now: float) -> Recorded:
    name = given.response or _save_reply(connection, who, given.reply, now)
    said = {"response": name, "user": user_hash(who.secret, given.user), "signal": given.signal, "reason": given.reason}
    said["body"] = canonical(given.body)
    table = schema.signals
    mine = (table.c.tenant == who.name) & (table.c.key == given.key)
    known = connection.execute(sa.select(table).where(mine)).first()
    if known is not None:
        if any(getattr(known, field) != value for field, value in said.items()):
            raise KeyReused(f"id {given.key} named signal {known.sequence} with other content; make a new id for each act")
        return Recorded(given.key, known.sequence, known.standing)
    reply = given.reply or _load_reply(connection, who.name, name)
    if given.text == reply.response.text:
        raise FeedbackError(f"id {given.key}: the edited text is the response itself; send what the user changed")
    today = _count_today(connection, who.name, said["user"], int(now // DAY))
    sequence = rows.last(connection, table) + 1
    standing: Standing = "counted" if today <= cap else "capped"
    row = {"sequence": sequence, "tenant": who.name, "key": given.key, "time": now, "standing": standing}
    connection.execute(table.insert(), {**row, **said})
    if given.signal == "edit" and standing == "counted":
        correction = quarantine.Correction(
            who.name, f"signal:{sequence}", f"user:{said['user']}", reply.prompt, reply.response.text, given.text
        )
        quarantine.save(connection, correction, now)
    return Recorded(given.key, sequence, standing)


def _count_today(connection: Connection, tenant: str, user: str, day: int) -> int:
    """Signals of a user today, this one among them. The caller holds the head, so nobody else counts meanwhile."""
    table = schema.signal_days
    mine = (table.c.tenant == tenant) & (table.c.user == user) & (table.c.day == day)
    counted = table.update().where(mine).values(signals=table.c.signals + 1).returning(table.c.signals)
    count = connection.execute(counted).scalar()
    if count is None:
        connection.execute(table.insert(), {"tenant": tenant, "user": user, "day": day, "signals": 1})
    return int(count or 1)


def _save_reply(connection: Connection, who: Tenant, reply: Reply | None, now: float) -> str:
    assert reply is not None  # a signal has one or the name of one
    table = schema.product_responses
    mine = (table.c.tenant == who.name) & (table.c.name == reply.key)
    present = connection.execute(sa.select(table.c.content).where(mine)).scalar()
    if present is None:
        row = {"tenant": who.name, "name": reply.key, "content": reply.content, "body": reply.body, "added": now}
        connection.execute(table.insert(), row)
    elif present != reply.content:
        raise KeyReused(f"response.id {reply.key} came before with other content; give another response its own id")
    return reply.key


def _load_reply(connection: Connection, tenant: str, name: str) -> Reply:
    table = schema.product_responses
    mine = (table.c.tenant == tenant) & (table.c.name == name)
    body = connection.execute(sa.select(table.c.body).where(mine)).scalar()
    if body is None:
        raise NotFound(f"response_id {name!r:.60} was never sent; send the response itself first")
    return _reply(name, body)


def _reply(name: str, body: str) -> Reply:
    fields: dict[str, Any] = json.loads(body)
    outer = {field: fields.pop(field) for field in ("prompt", "request", "arm")}
    return Reply(response=Response.of(fields), name=name, **outer)


@dataclass(frozen=True)
class Signals:
    """The first ``until`` signals of a store, with the responses they speak of, by (tenant, name)."""

    events: tuple[SignalEvent, ...]
    replies: dict[tuple[str, str], Reply]

    @property
    def until(self) -> int:
        return len(self.events)


def snapshot(store: Store, until: int | None = None) -> Signals:
    """The log of signals up to one of them, or as it is now. Raises FeedbackError if it is shorter."""
    table, responses = schema.signals, schema.product_responses
    query = sa.select(table).order_by(table.c.sequence)
    query = query if until is None else query.where(table.c.sequence <= until)
    spoken = sa.exists().where(table.c.tenant == responses.c.tenant, table.c.response == responses.c.name)
    with store.database.read() as connection:
        events = tuple(SignalEvent(**row._asdict() | {"body": json.loads(row.body)}) for row in connection.execute(query))
        found = connection.execute(sa.select(responses).where(spoken))
        replies = {(row.tenant, row.name): _reply(row.name, row.body) for row in found}
    if until is not None and len(events) != until:
        raise FeedbackError(f"the log has {len(events)} signals, not {until}; is this the same store?")
    return Signals(events, replies)
