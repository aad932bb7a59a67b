"""Sessions of the service, and the store's own random keys."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "m0002"
down_revision = "m0001"


def upgrade() -> None:
    op.create_table(
        "sessions",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("annotator", sa.Text, sa.ForeignKey("annotators.name"), nullable=False),
        sa.Column("created", sa.Float(53), nullable=False),
        sa.Column("expires", sa.Float(53), nullable=False),
        sa.Index("sessions_of_annotator", "annotator", "created"),
    )
    op.create_table("secrets", sa.Column("name", sa.Text, primary_key=True), sa.Column("value", sa.LargeBinary, nullable=False))
