"""Stores with nothing in them, on both databases. PostgreSQL is a real server, started once for the tests of a process."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sqlalchemy", reason="needs the extra feedback")

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from feedback_examples import PLAIN, HandClock
from private_postgresql import NoPostgreSQL, private_postgresql

from penstock.feedback.store import Store

SHAPE = """
    SELECT md5(string_agg(line, ' ' ORDER BY line)) FROM (
        SELECT table_name || column_name || data_type AS line FROM information_schema.columns WHERE table_schema = 'public'
        UNION ALL SELECT indexdef FROM pg_indexes WHERE schemaname = 'public'
        UNION ALL SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal
    ) AS lines
"""
"""A digest of the tables, columns, indexes and triggers of a database."""


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """The URL of a server's database: it listens on a socket in a folder of its own and nowhere else."""
    pytest.importorskip("psycopg", reason="PostgreSQL: needs the extra postgres")
    try:
        with private_postgresql("shared_buffers=16MB", "max_connections=60", "fsync=off") as (url, _):
            yield url
    except NoPostgreSQL as error:
        pytest.skip(f"PostgreSQL: {error}")


@pytest.fixture
def empty_postgresql(postgresql: str) -> str:
    """The URL of a database with nothing in it."""
    import psycopg

    with psycopg.connect(postgresql, autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
    return postgresql


@pytest.fixture(scope="session")
def migrated() -> dict[str, Any]:
    """The shape of a store on PostgreSQL, and the rows that migrations put into it."""
    return {}


@pytest.fixture
def store_on_postgresql(request: pytest.FixtureRequest, postgresql: str, migrated: dict[str, Any]) -> str:
    """The URL of a store with nothing in it. Migrations take long; where the tables are as they left them, rows are deleted."""
    import psycopg

    with psycopg.connect(postgresql) as connection:
        if connection.execute(SHAPE).fetchone() == migrated.get("shape"):
            connection.execute("SET session_replication_role = replica")  # which no trigger refuses
            for table, rows in migrated["rows"].items():
                connection.execute(f"DELETE FROM {table}")
                for row in rows:
                    connection.execute(f"INSERT INTO {table} VALUES ({', '.join(['%s'] * len(row))})", row)
            return postgresql
    Store.open(request.getfixturevalue("empty_postgresql")).close()
    with psycopg.connect(postgresql) as connection:
        tables = [name for (name,) in connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")]
        migrated["rows"] = {table: connection.execute(f"SELECT * FROM {table}").fetchall() for table in tables}
        migrated["shape"] = connection.execute(SHAPE).fetchone()
    return postgresql


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of SQLite with nothing in it, copied for each test: migrations take longer than most tests."""
    path = tmp_path_factory.mktemp("empty") / "feedback.db"
    Store.open(path).close()
    return path


@pytest.fixture
def file(empty_store: Path, tmp_path: Path) -> Path:
    """The file of an empty store."""
    return Path(shutil.copy(empty_store, tmp_path / "f.db"))


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest) -> str:
    """An empty store on either database."""
    return str(request.getfixturevalue("file" if request.param == "sqlite" else "store_on_postgresql"))


@pytest.fixture(params=["sqlite", "postgresql"])
def new_place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a store may be made, on either database."""
    return str(tmp_path / "new.db") if request.param == "sqlite" else request.getfixturevalue("empty_postgresql")


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def store(file: Path, clock: HandClock) -> Iterator[Store]:
    """An empty store of SQLite on the hand clock, which gives neither gold nor repeats."""
    with Store.open(file, PLAIN, clock) as opened:
        yield opened


@pytest.fixture
def either(place: str, clock: HandClock) -> Iterator[Store]:
    """The same on each database."""
    with Store.open(place, PLAIN, clock) as opened:
        yield opened
