"""The first schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "m0001"
down_revision = None

APPEND_ONLY = ("blobs", "items", "tasks", "events")


def text(name: str, *more: sa.schema.SchemaItem, unique: bool | None = None) -> sa.Column:
    return sa.Column(name, sa.Text, *more, nullable=False, unique=unique)


def number(name: str, kind: type = sa.BigInteger) -> sa.Column:
    return sa.Column(name, kind, nullable=False)


def real(name: str) -> sa.Column:
    return sa.Column(name, sa.Float(53), nullable=False)


def upgrade() -> None:
    _create_log()
    _create_indices()
    op.execute("INSERT INTO head (id, events, tasks) VALUES (1, 0, 0)")
    postgresql = op.get_bind().dialect.name == "postgresql"
    if postgresql:
        op.execute(
            "CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'append-only'; END $$"
        )
    for table in APPEND_ONLY:
        if postgresql:
            op.execute(
                f"CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
                "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
            )
            continue
        for verb in ("update", "delete"):
            op.execute(
                f"CREATE TRIGGER {table}_no_{verb} BEFORE {verb.upper()} ON {table} "
                "BEGIN SELECT RAISE(ABORT, 'append-only'); END"
            )


def _create_log() -> None:
    op.create_table("blobs", sa.Column("hash", sa.Text, primary_key=True), sa.Column("body", sa.LargeBinary, nullable=False))
    op.create_table("items", sa.Column("id", sa.Text, primary_key=True), text("body"))
    op.create_table(
        "tasks",
        sa.Column("id", sa.Text, primary_key=True),
        text("item", sa.ForeignKey("items.id")),
        text("purpose"),
        text("origin"),
        text("reserved"),
        number("overlap", sa.Integer),
        text("body"),
        real("added"),
        sa.Index("tasks_of_item", "item"),
        sa.Index("tasks_repeated", "origin", "reserved"),
    )
    op.create_table(
        "annotators",
        sa.Column("name", sa.Text, primary_key=True),
        *(text(name) for name in ("role", "nature", "attributes", "password", "invite")),
        number("enabled", sa.Boolean),
        real("added"),
    )
    op.create_table(
        "events",
        sa.Column("sequence", sa.BigInteger, primary_key=True, autoincrement=False),
        text("key", unique=True),
        real("time"),
        text("kind"),
        text("task", sa.ForeignKey("tasks.id")),
        text("annotator", sa.ForeignKey("annotators.name")),
        number("target"),
        text("body"),
        text("shown"),
        real("latency"),
        text("guideline"),
        sa.Index("events_of_task", "task"),
        sa.Index("events_of_annotator", "annotator", "sequence"),
        sa.Index("events_by_target", "target"),
    )


def _create_indices() -> None:
    op.create_table(
        "answers",
        sa.Column("task", sa.Text, sa.ForeignKey("tasks.id"), primary_key=True),
        sa.Column("annotator", sa.Text, sa.ForeignKey("annotators.name"), primary_key=True),
        sa.Column("event", sa.BigInteger, sa.ForeignKey("events.sequence"), nullable=False),
        text("kind"),
        sa.Index("answers_of_annotator", "annotator", "event"),
    )
    op.create_table(
        "progress",
        sa.Column("task", sa.Text, sa.ForeignKey("tasks.id"), primary_key=True),
        number("number"),
        text("purpose"),
        real("urgency"),
        number("judgements", sa.Integer),
        number("open", sa.Boolean),
        sa.UniqueConstraint("number"),
        sa.Index("progress_queue", "open", "urgency", "number"),
        sa.Index("progress_of_purpose", "purpose", "open"),
    )
    op.create_table(
        "leases",
        sa.Column("task", sa.Text, sa.ForeignKey("tasks.id"), primary_key=True),
        sa.Column("annotator", sa.Text, sa.ForeignKey("annotators.name"), primary_key=True),
        text("shown"),
        real("granted"),
        real("deadline"),
        sa.Index("leases_of_annotator", "annotator", "deadline"),
    )
    op.create_table(
        "head", sa.Column("id", sa.Integer, primary_key=True, autoincrement=False), number("events"), number("tasks")
    )
