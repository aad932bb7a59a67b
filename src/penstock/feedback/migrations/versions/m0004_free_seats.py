"""When a task's next seat is free stands with its progress, and the queue is an index for each purpose."""

from __future__ import annotations

import time

import sqlalchemy as sa
from alembic import op

revision = "m0004"
down_revision = "m0003"

FULL_UNTIL = """
UPDATE progress SET free_at = COALESCE((
    SELECT MIN(leases.deadline) FROM leases JOIN tasks ON tasks.id = leases.task
    WHERE leases.task = progress.task AND leases.deadline > :now AND tasks.overlap > 0
    GROUP BY tasks.overlap HAVING COUNT(*) + progress.judgements >= tasks.overlap
), 0)
"""


def upgrade() -> None:
    op.add_column("progress", sa.Column("free_at", sa.Float(53), nullable=False, server_default="0"))
    op.get_bind().execute(sa.text(FULL_UNTIL), {"now": time.time()})
    op.drop_index("progress_queue", "progress")
    op.drop_index("progress_of_purpose", "progress")
    op.create_index("progress_queue", "progress", ["purpose", "open", "urgency", "number"])
    op.create_index("tasks_reserved", "tasks", ["reserved", "added"])
