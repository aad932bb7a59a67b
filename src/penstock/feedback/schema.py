"""The tables, one schema for SQLite and PostgreSQL.

``blobs``, ``items``, ``tasks`` and ``events`` are only ever added to: triggers refuse every update and delete.
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
    UniqueConstraint("number"),
    Index("progress_queue", "open", "urgency", "number"),
    Index("progress_of_purpose", "purpose", "open"),
)
"""How many judgements a task has; the queue's index. Lower ``urgency`` (the negative priority) comes first, then ``number``,
the order in which tasks were added."""

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

head = Table(
    "head",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("events", BigInteger, nullable=False),
    Column("tasks", BigInteger, nullable=False),
)
