"""Tenants, their tokens, and the log of what their users did: append-only, in the same database as the votes, apart from them.

Every verb is one transaction of the store; when it returns, what it did is durable.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from penstock.feedback import schema
from penstock.feedback.errors import FeedbackError, KeyReused, NotFound
from penstock.feedback.records import Response, canonical, require_name
from penstock.product import quarantine
from penstock.product.signals import Reply, Signal, SignalEvent, Standing, user_hash

if TYPE_CHECKING:
    from penstock.feedback.store import Store

DAY = 86_400.0
MOST_TOGETHER = 100
"""Signals in one call."""
TOKEN = "penstock_product_"
"""What a token begins with, so that one in a log or a repository is recognised."""


@dataclass(frozen=True)
class Tenant:
    """A product. ``secret`` (hex) keys the hashes of its users' names and the fences of its corrections."""

    name: str
    secret: str


@dataclass(frozen=True)
class Caps:
    """What is counted."""

    user_day: int = 50
    """Signals of one user on one day (UTC) that count; later ones are recorded as capped."""

    def __post_init__(self) -> None:
        if self.user_day < 1:
            raise FeedbackError(f"user_day={self.user_day}; let at least 1 signal of a user count each day")


@dataclass(frozen=True)
class Recorded:
    """What became of a signal."""

    key: str
    sequence: int
    standing: Standing


def new_token(store: Store, tenant: str) -> str:
    """A new token of a tenant, who is added if there is none of that name. Only its hash is kept: show it once."""
    require_name(tenant, "tenant")
    token, now = TOKEN + secrets.token_hex(24), store.now()

    def add(connection: Connection) -> None:
        if connection.execute(sa.select(schema.tenants.c.name).where(schema.tenants.c.name == tenant)).first() is None:
            row = {"name": tenant, "secret": secrets.token_hex(32), "added": now}
            connection.execute(schema.tenants.insert(), row)
        connection.execute(
            schema.product_tokens.insert(), {"hash": _hash(token), "tenant": tenant, "added": now, "enabled": True}
        )

    store.database.commit(add)
    return token


def revoke_tokens(store: Store, tenant: str) -> int:
    """Switch off all tokens of a tenant; how many there were. Raises NotFound if there is no such tenant."""
    table = schema.product_tokens

    def revoke(connection: Connection) -> int:
        _tenant(connection, tenant)
        mine = (table.c.tenant == tenant) & table.c.enabled
        return connection.execute(table.update().where(mine).values(enabled=False)).rowcount

    return store.database.commit(revoke)


def tenant_of(store: Store, token: str) -> Tenant | None:
    """Whose token it is; None for one that is unknown or switched off."""
    table = schema.product_tokens
    query = (
        sa.select(schema.tenants.c.name, schema.tenants.c.secret)
        .join(table, table.c.tenant == schema.tenants.c.name)
        .where(table.c.hash == _hash(token), table.c.enabled)
    )
    with store.database.read() as connection:
        row = connection.execute(query).first()
    return None if row is None else Tenant(row.name, row.secret)


def tenant(store: Store, name: str) -> Tenant:
    """The tenant of a name. Raises NotFound."""
    with store.database.read() as connection:
        return _tenant(connection, name)


def tenant_names(store: Store) -> list[str]:
    """All tenants, by name."""
    with store.database.read() as connection:
        return list(connection.execute(sa.select(schema.tenants.c.name).order_by(schema.tenants.c.name)).scalars())


def _tenant(connection: Connection, name: str) -> Tenant:
    row = connection.execute(sa.select(schema.tenants).where(schema.tenants.c.name == name)).first()
    if row is None:
        raise NotFound(f"there is no tenant {name!r:.60}; make one: penstock feedback product STORE {name:.60}")
    return Tenant(row.name, row.secret)


def _hash(token: str) -> str:
    # A token is 192 random bits: there is nothing to guess, so a fast hash is enough.
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def record(store: Store, who: Tenant, given: Sequence[Signal], caps: Caps | None = None) -> list[Recorded]:
    """Record signals of one tenant, all or none. What is in the log already is given as it is there.

    An edit goes into quarantine as a correction with it.

    Raises:
        FeedbackError: none or too many at once, or an edit that changes nothing.
        KeyReused: an id, or a response's, came before with other content.
        NotFound: a response that was never sent.
    """
    caps = caps or Caps()
    if not 0 < len(given) <= MOST_TOGETHER:
        raise FeedbackError(f"{len(given)} signals at once; send 1 to {MOST_TOGETHER}")

    def write(connection: Connection) -> list[Recorded]:
        now = store.now()
        return [_record(connection, who, signal, caps, now) for signal in given]

    return store.database.commit(write)


def _record(connection: Connection, who: Tenant, given: Signal, caps: Caps, now: float) -> Recorded:
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
    sequence = connection.execute(sa.select(sa.func.coalesce(sa.func.max(table.c.sequence), 0))).scalar_one() + 1
    standing: Standing = "counted" if today <= caps.user_day else "capped"
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
    fields |= {"tokens": tuple(fields["tokens"]), "logp": tuple(fields["logp"])}
    return Reply(response=Response(**fields), name=name, **outer)


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
        events = tuple(_event(row) for row in connection.execute(query))
        rows = connection.execute(sa.select(responses).where(spoken))
        replies = {(row.tenant, row.name): _reply(row.name, row.body) for row in rows}
    if until is not None and len(events) != until:
        raise FeedbackError(f"the log has {len(events)} signals, not {until}; is this the same store?")
    return Signals(events, replies)


def _event(row: sa.Row[Any]) -> SignalEvent:
    fields = {name: getattr(row, name) for name in SignalEvent.__dataclass_fields__}
    return SignalEvent(**{**fields, "body": json.loads(row.body)})
