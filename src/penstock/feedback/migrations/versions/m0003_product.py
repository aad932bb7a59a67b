"""Product signals and corrections, beside the annotators' log."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "m0003"
down_revision = "m0002"

APPEND_ONLY = ("product_responses", "signals", "corrections", "rulings")


def text(name: str, *more: sa.schema.SchemaItem) -> sa.Column:
    return sa.Column(name, sa.Text, *more, nullable=False)


def key(name: str, *more: sa.schema.SchemaItem) -> sa.Column:
    return sa.Column(name, sa.Text, *more, primary_key=True)


def counter(name: str) -> sa.Column:
    return sa.Column(name, sa.BigInteger, primary_key=True, autoincrement=False)


def real(name: str) -> sa.Column:
    return sa.Column(name, sa.Float(53), nullable=False)


def of_tenant() -> sa.ForeignKey:
    return sa.ForeignKey("tenants.name")


def upgrade() -> None:
    _create_signals()
    _create_corrections()
    for table in APPEND_ONLY:
        if op.get_bind().dialect.name == "postgresql":  # the function was made by the first migration
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


def _create_signals() -> None:
    op.create_table("tenants", key("name"), text("secret"), real("added"))
    op.create_table(
        "product_tokens",
        key("hash"),
        text("tenant", of_tenant()),
        real("added"),
        sa.Column("enabled", sa.Boolean, nullable=False),
    )
    op.create_table("product_responses", key("tenant", of_tenant()), key("name"), text("content"), text("body"), real("added"))
    op.create_table(
        "signals",
        counter("sequence"),
        text("tenant", of_tenant()),
        text("key"),
        real("time"),
        *(text(name) for name in ("response", "user", "signal", "reason", "standing", "body")),
        sa.UniqueConstraint("tenant", "key"),
        sa.Index("signals_of_response", "tenant", "response"),
    )
    op.create_table(
        "signal_days",
        key("tenant", of_tenant()),
        key("user"),
        counter("day"),
        sa.Column("signals", sa.BigInteger, nullable=False),
    )


def _create_corrections() -> None:
    op.create_table(
        "corrections",
        key("id"),
        text("tenant", of_tenant()),
        *(text(name) for name in ("source", "author", "body")),
        real("added"),
        sa.Index("corrections_of_tenant", "tenant", "added"),
    )
    op.create_table(
        "rulings",
        counter("sequence"),
        text("correction", sa.ForeignKey("corrections.id")),
        text("verdict"),
        text("annotator", sa.ForeignKey("annotators.name")),
        real("time"),
        real("expires"),
        text("note"),
        sa.Index("rulings_of_correction", "correction", "sequence"),
    )
    op.create_table(
        "vectors",
        key("correction", sa.ForeignKey("corrections.id")),
        key("embedder"),
        sa.Column("vector", sa.LargeBinary, nullable=False),
    )
