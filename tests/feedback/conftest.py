"""A store's place on both databases. PostgreSQL is a real server, started once for the tests of a process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("sqlalchemy", reason="needs the extra feedback")

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from private_postgresql import NoPostgreSQL, private_postgresql


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """The URL of a server's database: it listens on a socket in a folder of its own and nowhere else."""
    pytest.importorskip("psycopg", reason="PostgreSQL: needs the extra postgres")
    try:
        with private_postgresql("shared_buffers=16MB", "max_connections=60") as (url, _):
            yield url
    except NoPostgreSQL as error:
        pytest.skip(f"PostgreSQL: {error}")


def emptied(url: str) -> str:
    """The URL of a database, with nothing in it now."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
    return url


@pytest.fixture
def empty_postgresql(postgresql: str) -> str:
    """The URL of a database with nothing in it."""
    return emptied(postgresql)


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a new store goes, on either database."""
    if request.param == "sqlite":
        return str(tmp_path / "feedback.db")
    return emptied(request.getfixturevalue("postgresql"))
