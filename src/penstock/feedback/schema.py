"""The tables, one schema for SQLite and PostgreSQL.

``blobs``, ``items``, ``tasks`` and ``events`` are only ever added to: triggers refuse every update and delete. So are
``product_responses``, ``signals``, ``corrections`` and ``rulings``.
``answers`` and ``progress`` are indices over the log, rebuilt from it at will (``Store.verify``). ``leases`` and
``annotators`` are what the service works with. ``head`` holds one row, the length of the log: every writer takes it first, so
that events get numbers without gaps in the order in which they become durable, and no two writers ever decide at once.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
)

metadata = MetaData()

blobs = Table("blobs", metadata, Column("hash", Text, primary_key=True), Column("body", LargeBinary, nullable=False))
"""Contents by their SHA-256: responses as canonical JSON."""

items = Table("items", metadata, Column("id", Text, primary_key=True), Column("body", Text, nullable=False))

tasks = Table(
    "tasks",
    metadata,
    Column("id", Text, primary_key=True),
    Column("item", Text, ForeignKey("items.id"), nullable=False),
    Column("purpose", Text, nullable=False),
    Column("origin", Text, nullable=False),
    Column("reserved", Text, nullable=False),
    Column("overlap", Integer, nullable=False),
    Column("body", Text, nullable=False),
    Column("added", Float(53), nullable=False),
    Index("tasks_of_item", "item"),
    Index("tasks_repeated", "origin", "reserved"),
    Index("tasks_reserved", "reserved", "added"),
)

annotators = Table(
    "annotators",
    metadata,
    Column("name", Text, primary_key=True),
    Column("role", Text, nullable=False),
    Column("nature", Text, nullable=False),
    Column("attributes", Text, nullable=False),
    Column("password", Text, nullable=False),
    Column("invite", Text, nullable=False),
    Column("enabled", Boolean, nullable=False),
    Column("added", Float(53), nullable=False),
)

events = Table(
    "events",
    metadata,
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    Column("key", Text, nullable=False, unique=True),
    Column("time", Float(53), nullable=False),
    Column("kind", Text, nullable=False),
    Column("task", Text, ForeignKey("tasks.id"), nullable=False),
    Column("annotator", Text, ForeignKey("annotators.name"), nullable=False),
    Column("target", BigInteger, nullable=False),
    Column("body", Text, nullable=False),
    Column("shown", Text, nullable=False),
    Column("latency", Float(53), nullable=False),
    Column("guideline", Text, nullable=False),
    Index("events_of_task", "task"),
    Index("events_of_annotator", "annotator", "sequence"),
    Index("events_by_target", "target"),
)

answers = Table(
    "answers",
    metadata,
    Column("task", Text, ForeignKey("tasks.id"), primary_key=True),
    Column("annotator", Text, ForeignKey("annotators.name"), primary_key=True),
    Column("event", BigInteger, ForeignKey("events.sequence"), nullable=False),
    Column("kind", Text, nullable=False),
    Index("answers_of_annotator", "annotator", "event"),
)
"""Who is done with a task and by which event; its key makes a second vote of an annotator impossible."""

progress = Table(
    "progress",
    metadata,
    Column("task", Text, ForeignKey("tasks.id"), primary_key=True),
    Column("number", BigInteger, nullable=False),
    Column("purpose", Text, nullable=False),
    Column("urgency", Float(53), nullable=False),
    Column("judgements", Integer, nullable=False),
    Column("open", Boolean, nullable=False),
    Column("free_at", Float(53), nullable=False, server_default="0"),
    UniqueConstraint("number"),
    Index("progress_queue", "purpose", "open", "urgency", "number"),
)
"""How many judgements a task has; the queue's index. Lower ``urgency`` (the negative priority) comes first, then ``number``,
the order in which tasks were added. From ``free_at`` on a task that is open has a seat that neither a judgement nor a lease
takes: 0, or while all are taken the first deadline."""

leases = Table(
    "leases",
    metadata,
    Column("task", Text, ForeignKey("tasks.id"), primary_key=True),
    Column("annotator", Text, ForeignKey("annotators.name"), primary_key=True),
    Column("shown", Text, nullable=False),
    Column("granted", Float(53), nullable=False),
    Column("deadline", Float(53), nullable=False),
    Index("leases_of_annotator", "annotator", "deadline"),
)

sessions = Table(
    "sessions",
    metadata,
    Column("id", Text, primary_key=True),
    Column("annotator", Text, ForeignKey("annotators.name"), nullable=False),
    Column("created", Float(53), nullable=False),
    Column("expires", Float(53), nullable=False),
    Index("sessions_of_annotator", "annotator", "created"),
)
"""Who is signed in at the service: the hash of what their cookie holds."""

secrets = Table("secrets", metadata, Column("name", Text, primary_key=True), Column("value", LargeBinary, nullable=False))
"""Random keys of this store, each made when it is first needed (``service/secrets.py``)."""

head = Table(
    "head",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("events", BigInteger, nullable=False),
    Column("tasks", BigInteger, nullable=False),
)

# Product signals: a log of its own beside the annotators' log, never mixed into it.

tenants = Table(
    "tenants",
    metadata,
    Column("name", Text, primary_key=True),
    Column("secret", Text, nullable=False),
    Column("added", Float(53), nullable=False),
)
"""Products that send signals. ``secret`` keys the hashes of their users' names and the fences of their corrections."""

product_tokens = Table(
    "product_tokens",
    metadata,
    Column("hash", Text, primary_key=True),
    Column("tenant", Text, ForeignKey("tenants.name"), nullable=False),
    Column("added", Float(53), nullable=False),
    Column("enabled", Boolean, nullable=False),
)

product_responses = Table(
    "product_responses",
    metadata,
    Column("tenant", Text, ForeignKey("tenants.name"), primary_key=True),
    Column("name", Text, primary_key=True),
    Column("content", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("added", Float(53), nullable=False),
)
"""Responses that signals speak of, by the product's own name for them; ``content`` is the hash of ``body``."""

signals = Table(
    "signals",
    metadata,
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    Column("tenant", Text, ForeignKey("tenants.name"), nullable=False),
    Column("key", Text, nullable=False),
    Column("time", Float(53), nullable=False),
    Column("response", Text, nullable=False),
    Column("user", Text, nullable=False),
    Column("signal", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("standing", Text, nullable=False),
    Column("body", Text, nullable=False),
    UniqueConstraint("tenant", "key"),
    Index("signals_of_response", "tenant", "response"),
)
"""What users of products did; ``user`` is a keyed hash, ``standing`` says whether a signal counts or came above a cap."""

signal_days = Table(
    "signal_days",
    metadata,
    Column("tenant", Text, ForeignKey("tenants.name"), primary_key=True),
    Column("user", Text, primary_key=True),
    Column("day", BigInteger, primary_key=True, autoincrement=False),
    Column("signals", BigInteger, nullable=False),
)
"""Signals of a user on a day (UTC, days since 1970): an index over the log, for the cap."""

corrections = Table(
    "corrections",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant", Text, ForeignKey("tenants.name"), nullable=False),
    Column("source", Text, nullable=False),
    Column("author", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("added", Float(53), nullable=False),
    Index("corrections_of_tenant", "tenant", "added"),
)
"""Corrected answers in quarantine: of no use to anybody until a ruling approves them."""

rulings = Table(
    "rulings",
    metadata,
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    Column("correction", Text, ForeignKey("corrections.id"), nullable=False),
    Column("verdict", Text, nullable=False),
    Column("annotator", Text, ForeignKey("annotators.name"), nullable=False),
    Column("time", Float(53), nullable=False),
    Column("expires", Float(53), nullable=False),
    Column("note", Text, nullable=False),
    Index("rulings_of_correction", "correction", "sequence"),
)
"""What adjudicators decided about corrections; the newest ruling of each stands."""

vectors = Table(
    "vectors",
    metadata,
    Column("correction", Text, ForeignKey("corrections.id"), primary_key=True),
    Column("embedder", Text, primary_key=True),
    Column("vector", LargeBinary, nullable=False),
)
"""Embeddings of corrections, by the name of what embedded them; float32, little-endian. They can be computed again."""
