"""Wrong passwords, counted in the store."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "m0005"
down_revision = "m0004"


def upgrade() -> None:
    op.create_table(
        "attempts",
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("count", sa.Integer, nullable=False),
        sa.Column("last", sa.Float(53), nullable=False),
        sa.Index("attempts_by_age", "last"),
    )
