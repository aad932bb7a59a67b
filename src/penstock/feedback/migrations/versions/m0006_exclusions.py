"""People and periods can be excluded: a table of its own, since those lines of the log are about no task."""

from alembic import op

from penstock.feedback import schema

revision = "m0006"
down_revision = "m0005"


def upgrade() -> None:
    """Make the table, and refuse changes of it."""
    schema.exclusions.create(op.get_bind())
    schema.protect(op.get_bind(), schema.exclusions)
