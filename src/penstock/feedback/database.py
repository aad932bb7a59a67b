"""A connection to SQLite or PostgreSQL with one meaning of a transaction: what it wrote is durable once it returns."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from penstock.core.network import require_no_password
from penstock.feedback import schema
from penstock.feedback.errors import FeedbackError, StoreUnavailable

MIGRATION_LOCK = 0x70656E73
"""PostgreSQL advisory lock that holds back everybody else while one process migrates."""

BUSY_SECONDS = 30
"""How long a SQLite writer waits for the others, and a PostgreSQL one for the head of the log."""

LOST_SECONDS = 20
"""After so long of silence in mid-transaction PostgreSQL gives up a writer and lets go of the head: its machine is gone, or the
network to it. Less than the others wait for the head."""

CONNECT_SECONDS = 10

CONNECTIONS = 24
"""Connections that stay open once they were needed: one for each thread of the service, and some to spare."""

UNKNOWN = "it may have been written: send it again under its key"


def connect(place: str | Path) -> Database:
    """Open (or create) a store and bring its schema up to date.

    Args:
        place: a file for SQLite, or a URL ``postgresql://USER@HOST/NAME`` (the extra ``postgres``). Its password is in
            ``~/.pgpass`` or the file that ``PGPASSFILE`` names.

    Raises:
        SpecError: a password in the URL.
        FeedbackError: it cannot be opened, or a newer Penstock has written it.
    """
    require_no_password(str(place))
    database = Database(*_engine(str(place)))
    try:
        with database.write(head=False) as connection:
            _migrate(connection, database.name)
    except BaseException:
        database.close()
        raise
    return database


_LET_GO = sa.func.set_config("idle_in_transaction_session_timeout", f"{LOST_SECONDS}s", True)


class Database:
    """One store's connections: ``write`` serialises writers of all processes, ``read`` sees one state."""

    def __init__(self, engine: Engine, name: str) -> None:
        self.name = name
        self._engine = engine
        # Threads of one process wait here in turn: SQLite's own waiting sleeps longer and longer and lets newcomers pass.
        self._turn = threading.Lock()
        self._process = os.getpid()

    @contextmanager
    def write(self, *, head: bool = True) -> Iterator[Connection]:
        """A transaction that is durable when the block ends, and leaves nothing behind when it raises.

        With ``head`` it holds the log's head from its first statement on: nobody else decides anything meanwhile.
        """
        with self._errors(), self._my_turn(), self._engine.connect() as connection:
            marked = connection.execution_options(penstock_write=True)
            with marked.begin() as transaction:
                if head and marked.dialect.name == "postgresql":
                    marked.execute(sa.select(_LET_GO, schema.head.c.id).with_for_update())
                yield marked
                try:
                    transaction.commit()
                except sa.exc.OperationalError as error:
                    if marked.dialect.name == "sqlite":
                        raise
                    # A server may have committed before the connection was lost.
                    raise StoreUnavailable(f"feedback store {self.name}: the connection was lost; {UNKNOWN}") from error

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that sees the store as it was at its first statement."""
        with self._errors(), self._engine.connect() as connection:
            level = {"isolation_level": "REPEATABLE READ"} if connection.dialect.name == "postgresql" else {}
            marked = connection.execution_options(penstock_write=False, **level)
            with marked.begin():
                yield marked

    def close(self) -> None:
        """Let go of every connection."""
        self._engine.dispose()

    @contextmanager
    def _my_turn(self) -> Iterator[None]:
        if self._process != os.getpid():
            raise StoreUnavailable(
                f"feedback store {self.name}: it was opened by another process, before a fork; open it again in this one"
            )
        if not self._turn.acquire(timeout=BUSY_SECONDS):
            raise StoreUnavailable(f"feedback store {self.name}: another thread has been writing for {BUSY_SECONDS} seconds")
        try:
            yield
        finally:
            self._turn.release()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (sa.exc.DataError, self._engine.dialect.loaded_dbapi.DataError, UnicodeEncodeError, OverflowError) as error:
            raise FeedbackError(
                "a value that no store can hold: half a character (a lone surrogate), a NUL in a name, or too large a number"
            ) from error
        except (sa.exc.SQLAlchemyError, self._engine.dialect.loaded_dbapi.Error) as error:
            words = " ".join(str(getattr(error, "orig", None) or error).split())
            raise StoreUnavailable(f"feedback store {self.name}: {words[:300]}") from error


def _engine(place: str) -> tuple[Engine, str]:
    if place.startswith(("postgresql://", "postgres://", "postgresql+psycopg://")):
        return _postgresql(place)
    if "://" in place and not place.startswith("sqlite:///"):
        raise FeedbackError(f"{place.split('://')[0]}: no such store; give a file, or postgresql://USER@HOST/NAME")
    path = Path(place.removeprefix("sqlite:///")).expanduser().resolve()
    if not path.parent.is_dir():
        raise FeedbackError(f"{path}: there is no folder {path.parent}; make it first")
    # It holds votes, password hashes and keys; the files that SQLite keeps next to it take its mode.
    with suppress(OSError):  # one that is there, or cannot be made: SQLite says what is wrong
        path.touch(0o600, exist_ok=False)
    engine = sa.create_engine(
        sa.URL.create("sqlite", database=str(path)), connect_args={"timeout": BUSY_SECONDS}, pool_size=CONNECTIONS
    )

    @sa.event.listens_for(engine, "connect")
    def prepare(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # transactions begin where we say so, below
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA foreign_keys=ON")

    @sa.event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # A writer takes the lock before it reads: one that upgrades a read later may find that the state has moved on.
        immediate = connection.get_execution_options().get("penstock_write")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")

    return engine, str(path)


def _postgresql(place: str) -> tuple[Engine, str]:
    url = sa.make_url(place).set(drivername="postgresql+psycopg")
    name = url.render_as_string()
    options = f"-c lock_timeout={BUSY_SECONDS * 1000} -c synchronous_commit=on"
    # A server that has vanished, and not only fallen silent, is noticed by the system within the time that a verb waits.
    given = {"options": options, "connect_timeout": CONNECT_SECONDS, "keepalives_idle": 15, "keepalives_interval": 5,
             "keepalives_count": 3, "tcp_user_timeout": BUSY_SECONDS * 1000}  # fmt: skip
    try:
        return sa.create_engine(url, connect_args=given, pool_pre_ping=True, pool_size=CONNECTIONS), name
    except ModuleNotFoundError as error:
        raise FeedbackError(f"{name}: PostgreSQL needs the psycopg package; run: pip install penstock[postgres]") from error


def _migrate(connection: Connection, name: str) -> None:
    """Run the migrations that are missing, inside the connection's transaction: all of them or none."""
    from alembic import command
    from alembic.config import Config
    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory

    if connection.dialect.name == "postgresql":
        connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK})
    config = Config()
    # Alembic reads % in an option as the start of a placeholder.
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    script = ScriptDirectory.from_config(config)
    tables = sa.inspect(connection).get_table_names()
    if tables and "alembic_version" not in tables:
        raise FeedbackError(f"{name}: a database of something else (its first table is {min(tables)}); give a feedback store")
    present = MigrationContext.configure(connection).get_current_revision()
    known = [revision.revision for revision in script.walk_revisions()]
    if present is not None and "head" not in tables:
        raise FeedbackError(f"{name}: a database of something else, at its migration {present}; give a feedback store")
    if present is not None and present not in known:
        raise FeedbackError(
            f"{name}: its schema {present} is not one that this Penstock knows (the newest is {known[0]}); update Penstock"
        )
    config.attributes["connection"] = connection
    if not tables:
        schema.create(connection)
        command.stamp(config, "head")
    elif present != known[0]:
        command.upgrade(config, "head")


def backup(place: str, out: Path) -> int:
    """Copy a store of SQLite as it is at one moment, durably; gives the length of its log. Nobody waits meanwhile.

    Raises:
        FeedbackError: another database, a file that is there already or cannot be written, or a copy that is damaged.
    """
    if place.startswith("postgres"):
        raise FeedbackError(
            f"PostgreSQL makes its own: pg_dump --format=custom --file={out} 'postgresql://USER@HOST/NAME'; "
            "pg_restore brings it back"
        )
    file = Path(place.removeprefix("sqlite:///")).expanduser()
    if out.exists():
        raise FeedbackError(f"{out}: there is a file already; give a new name")
    temporary = out.with_name(f".{out.name}.writing")
    try:
        temporary.unlink(missing_ok=True)
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        with closing(sqlite3.connect(file, timeout=BUSY_SECONDS)) as source, closing(sqlite3.connect(temporary)) as copy:
            source.backup(copy)
            copy.execute("PRAGMA journal_mode=DELETE")  # one file, whole without its companions
            [said], [length] = (
                copy.execute("PRAGMA integrity_check").fetchone(),
                copy.execute("SELECT events FROM head").fetchone(),
            )
        if said != "ok":
            raise FeedbackError(f"{place}: the store is damaged ({said:.100}); restore an older backup")
        with open(temporary, "rb") as written:
            os.fsync(written.fileno())
        os.replace(temporary, out)
    except (OSError, sqlite3.Error) as error:
        raise FeedbackError(f"{out}: no backup was made ({error})") from error
    finally:
        temporary.unlink(missing_ok=True)
    return int(length)
