"""Run by Alembic for each upgrade, in the transaction and connection that ``database.py`` gives it."""

from __future__ import annotations

from alembic import context

context.configure(connection=context.config.attributes["connection"], transactional_ddl=True)
context.run_migrations()
