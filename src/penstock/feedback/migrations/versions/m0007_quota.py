"""A most for each person: how many answers somebody may give."""

import sqlalchemy as sa
from alembic import op

revision = "m0007"
down_revision = "m0006"


def upgrade() -> None:
    """Nobody has a most of their own."""
    op.add_column("annotators", sa.Column("quota", sa.Integer, nullable=False, server_default="0"))
