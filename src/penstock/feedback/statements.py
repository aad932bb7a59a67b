"""Statements that a vote or a lease runs: built once, compiled once for each database, run on the driver itself.

SQLAlchemy's own execution costs several times what SQLite takes for these statements. A row comes as a plain tuple, a truth
value from SQLite as 0 or 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection


class Statement:
    """A statement with named parameters; run it by :meth:`rows`, :meth:`row` or :meth:`run`, inside a transaction."""

    def __init__(self, clause: sa.ClauseElement) -> None:
        self._clause = clause
        self._compiled: dict[str, tuple[str, dict[str, Any], Sequence[str] | None]] = {}

    def run(self, connection: Connection, **values: Any) -> Any:
        """Run it with values for its parameters; gives the driver's cursor."""
        name = connection.dialect.name
        text, fixed, places = self._compiled.get(name) or self._compile(connection)
        given: Any = fixed | values
        if places is not None:
            given = [given[place] for place in places]
        return driver(connection).execute(text, given)

    def rows(self, connection: Connection, **values: Any) -> list[tuple[Any, ...]]:
        """Its rows."""
        return self.run(connection, **values).fetchall()

    def row(self, connection: Connection, **values: Any) -> tuple[Any, ...] | None:
        """Its first row, if there is one."""
        return self.run(connection, **values).fetchone()

    def with_values(self, **values: Any) -> Write:
        """The statement with its values, for :func:`run_together`."""
        return self, values

    def _compile(self, connection: Connection) -> tuple[str, dict[str, Any], Sequence[str] | None]:
        made = self._clause.compile(dialect=connection.dialect)
        assert "POSTCOMPILE" not in made.string, "a list of values (IN) has no fixed text: write it out with or_"
        places = tuple(made.positiontup or ()) if made.positional else None  # type: ignore[attr-defined]
        self._compiled[connection.dialect.name] = made.string, dict(made.params), places
        return self._compiled[connection.dialect.name]


Write = tuple[Statement, dict[str, Any]]


def run_together(connection: Connection, writes: Sequence[Write]) -> None:
    """Run statements that give no rows, in order. PostgreSQL gets them in one message and answers in one."""
    dbapi = driver(connection)
    with dbapi.pipeline() if len(writes) > 1 and connection.dialect.name == "postgresql" else nullcontext():
        for statement, values in writes:
            statement.run(connection, **values)


def driver(connection: Connection) -> Any:
    """The driver's connection below SQLAlchemy's, in the same transaction."""
    return connection.connection.dbapi_connection
