"""The tables, one schema for SQLite and PostgreSQL.

``blobs``, ``items``, ``tasks`` and ``events`` are only ever added to: triggers refuse every update and delete. So are
``product_responses``, ``signals``, ``corrections`` and ``rulings``.
``answers`` and ``progress`` are indices over the log, rebuilt from it at will (``Store.verify``). ``leases`` and
``annotators`` are what the service works with. ``head`` holds one row, the length of the log: every writer takes it first, so
that events get numbers without gaps in the order in which they become durable, and no two writers ever decide at once.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from penstock.feedback.records import DEFAULT

metadata = sa.MetaData()


def _table(name: str, *parts: sa.schema.SchemaItem) -> sa.Table:
    return sa.Table(name, metadata, *parts)


def _key(name: str, kind: type[sa.types.TypeEngine[Any]] = sa.Text) -> sa.Column[Any]:
    """A primary key, or a part of one, which its writer gives."""
    return sa.Column(name, kind, primary_key=True, autoincrement=False)


def _columns(kind: Any, *names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, kind, nullable=False) for name in names]


_texts, _integers, _small = partial(_columns, sa.Text), partial(_columns, sa.BigInteger), partial(_columns, sa.Integer)
_reals = partial(_columns, sa.Float(53))
"""Of double precision on both databases; times are seconds of the store's clock."""
_bytes, _flags = partial(_columns, sa.LargeBinary), partial(_columns, sa.Boolean)


def _reference(name: str, target: str, key: bool = False) -> sa.Column[str]:
    """A name in another table; ``key``: part of the primary key."""
    return sa.Column(name, sa.Text, sa.ForeignKey(target), primary_key=key, nullable=False)


def project_column() -> sa.Column[str]:
    """The project of a row. Rows from before there were projects are of the default one."""
    return sa.Column("project", sa.Text, nullable=False, server_default=DEFAULT)


blobs = _table("blobs", _key("hash"), *_bytes("body"))
"""Contents by their hash: responses as canonical JSON (SHA-256), images, sounds and videos as they are (``core.blobs``)."""

items = _table("items", _key("id"), sa.Column("body", sa.Text, nullable=False))

tasks = _table(
    "tasks",
    _key("id"),
    _reference("item", "items.id"),
    *_texts("purpose", "origin", "reserved"),
    *_small("overlap"),
    *_texts("body"),
    *_reals("added"),
    project_column(),
    sa.Index("tasks_of_item", "item"),
    sa.Index("tasks_repeated", "origin", "reserved"),
    sa.Index("tasks_reserved", "reserved", "added"),
)

annotators = _table(
    "annotators",
    _key("name"),
    *_texts("role", "nature", "attributes", "password", "invite"),
    *_flags("enabled"),
    *_reals("added"),
    sa.Column("quota", sa.Integer, nullable=False, server_default="0"),
)

projects = _table("projects", _key("name"), *_texts("body"), *_reals("added"))
"""Named parts of the store; ``body`` holds what is set for one (``projects.py``)."""

members = _table(
    "members",
    _reference("project", "projects.name", key=True),
    _reference("annotator", "annotators.name", key=True),
    sa.Index("members_by_name", "annotator"),
)
"""Who judges in which project: others see none of its tasks."""

events = _table(
    "events",
    _key("sequence", sa.BigInteger),
    sa.Column("key", sa.Text, nullable=False, unique=True),
    *_reals("time"),
    *_texts("kind"),
    _reference("task", "tasks.id"),
    _reference("annotator", "annotators.name"),
    *_integers("target"),
    *_texts("body", "shown"),
    *_reals("latency"),
    *_texts("guideline"),
    sa.Index("events_of_task", "task"),
    sa.Index("events_of_annotator", "annotator", "sequence"),
    sa.Index("events_by_target", "target"),
)

exclusions = _table(
    "exclusions",
    _key("sequence", sa.BigInteger),
    sa.Column("key", sa.Text, nullable=False, unique=True),
    *_reals("time"),
    *_texts("kind"),
    _reference("annotator", "annotators.name"),
    _reference("person", "annotators.name"),
    *_integers("target"),
    *_texts("body"),
    project_column(),
)
"""Lines of the log that are about a person and not about a task; numbered together with ``events``. No project: of all."""

answers = _table(
    "answers",
    _reference("task", "tasks.id", key=True),
    _reference("annotator", "annotators.name", key=True),
    sa.Column("event", sa.BigInteger, sa.ForeignKey("events.sequence"), nullable=False),
    *_texts("kind"),
    project_column(),
    sa.Index("answers_of_annotator", "annotator", "project", "event"),
)
"""Who is done with a task and by which event; its key makes a second vote of an annotator impossible."""

progress = _table(
    "progress",
    _reference("task", "tasks.id", key=True),
    *_integers("number"),
    *_texts("purpose"),
    *_reals("urgency"),
    *_small("judgements"),
    *_flags("open"),
    sa.Column("free_at", sa.Float(53), nullable=False, server_default="0"),
    project_column(),
    sa.UniqueConstraint("number"),
    sa.Index("progress_queue", "project", "purpose", "open", "urgency", "number"),
)
"""How many judgements a task has; the queue's index. Lower ``urgency`` (the negative priority) comes first, then ``number``,
the order in which tasks were added. From ``free_at`` on a task that is open has a seat that neither a judgement nor a lease
takes: 0, or while all are taken the first deadline."""

leases = _table(
    "leases",
    _reference("task", "tasks.id", key=True),
    _reference("annotator", "annotators.name", key=True),
    *_texts("shown"),
    *_reals("granted", "deadline"),
    sa.Index("leases_of_annotator", "annotator", "deadline"),
)

sessions = _table(
    "sessions",
    _key("id"),
    _reference("annotator", "annotators.name"),
    *_reals("created", "expires"),
    sa.Index("sessions_of_annotator", "annotator", "created"),
)
"""Who is signed in at the service: the hash of what their cookie holds."""

attempts = _table("attempts", _key("key"), *_small("count"), *_reals("last"), sa.Index("attempts_by_age", "last"))
"""Wrong passwords in a row, by a hash of the name or the address (``service/throttle.py``)."""

secrets = _table("secrets", _key("name"), *_bytes("value"))
"""Random keys of this store, each made when it is first needed (``service/secrets.py``)."""

head = _table("head", _key("id", sa.Integer), *_integers("events", "tasks"))

# Product signals: a log of its own, apart from the annotators' log, never mixed into it.

tenants = _table("tenants", _key("name"), *_texts("secret"), *_reals("added"))
"""Products that send signals. ``secret`` keys the hashes of their users' names and the fences of their corrections."""

product_tokens = _table(
    "product_tokens", _key("hash"), _reference("tenant", "tenants.name"), *_reals("added"), *_flags("enabled")
)

product_responses = _table(
    "product_responses",
    _reference("tenant", "tenants.name", key=True),
    _key("name"),
    *_texts("content", "body"),
    *_reals("added"),
)
"""Responses that signals speak of, by the product's own name for them; ``content`` is the hash of ``body``."""

signals = _table(
    "signals",
    _key("sequence", sa.BigInteger),
    _reference("tenant", "tenants.name"),
    *_texts("key"),
    *_reals("time"),
    *_texts("response", "user", "signal", "reason", "standing", "body"),
    sa.UniqueConstraint("tenant", "key"),
    sa.Index("signals_of_response", "tenant", "response"),
)
"""What users of products did; ``user`` is a keyed hash, ``standing`` says whether a signal counts or came above a cap."""

signal_days = _table(
    "signal_days",
    _reference("tenant", "tenants.name", key=True),
    _key("user"),
    _key("day", sa.BigInteger),
    *_integers("signals"),
)
"""Signals of a user on a day (UTC, days since 1970): an index over the log, for the cap."""

corrections = _table(
    "corrections",
    _key("id"),
    _reference("tenant", "tenants.name"),
    *_texts("source", "author", "body"),
    *_reals("added"),
    sa.Index("corrections_of_tenant", "tenant", "added"),
)
"""Corrected answers in quarantine: of no use to anybody until a ruling approves them."""

rulings = _table(
    "rulings",
    _key("sequence", sa.BigInteger),
    _reference("correction", "corrections.id"),
    *_texts("verdict"),
    _reference("annotator", "annotators.name"),
    *_reals("time", "expires"),
    *_texts("note"),
    sa.Index("rulings_of_correction", "correction", "sequence"),
)
"""What adjudicators decided about corrections; the newest ruling of each holds."""

vectors = _table("vectors", _reference("correction", "corrections.id", key=True), _key("embedder"), *_bytes("vector"))
"""Embeddings of corrections, by the name of what embedded them; float32, little-endian. They can be computed again."""

APPEND_ONLY = (blobs, items, tasks, events, exclusions, product_responses, signals, corrections, rulings)


def create(connection: Connection) -> None:
    """Make all tables in an empty database, and what refuses changes of those that are only added to."""
    metadata.create_all(connection)
    connection.execute(head.insert().values(id=1, events=0, tasks=0))
    connection.execute(projects.insert().values(name=DEFAULT, body="{}", added=0.0))
    if connection.dialect.name == "postgresql":
        refuse = "CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS"
        connection.execute(sa.text(f"{refuse} $$ BEGIN RAISE EXCEPTION 'append-only'; END $$"))
    for table in APPEND_ONLY:
        protect(connection, table)


def protect(connection: Connection, table: sa.Table) -> None:
    """Refuse every change of a table but new rows."""
    verbs, then = _refusal(connection)
    for name, verb in verbs.items():
        connection.execute(sa.text(f"CREATE TRIGGER {table.name}_{name} BEFORE {verb} ON {table.name} {then}"))


def unprotect(connection: Connection, table: sa.Table) -> None:
    """Let a table be changed, until :func:`protect`; only to take a person out (``deletion.py``)."""
    on = f" ON {table.name}" if connection.dialect.name == "postgresql" else ""
    for name in _refusal(connection)[0]:
        connection.execute(sa.text(f"DROP TRIGGER {table.name}_{name}{on}"))


def _refusal(connection: Connection) -> tuple[dict[str, str], str]:
    """Names of the triggers with the verbs that they refuse, and how."""
    if connection.dialect.name == "postgresql":
        return {"append_only": "UPDATE OR DELETE OR TRUNCATE"}, "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
    return {"no_update": "UPDATE", "no_delete": "DELETE"}, "BEGIN SELECT RAISE(ABORT, 'append-only'); END"
