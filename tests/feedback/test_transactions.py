"""Transactions of the store: each all or nothing and one after the other; what fails, and what a caller hears then."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import sqlalchemy as sa

from penstock.feedback import database as database_module
from penstock.feedback.database import connect
from penstock.feedback.errors import NotAllowed, StoreUnavailable


@pytest.fixture
def database(either):
    return either.database


def add(name: str):
    """A verb that adds an annotator."""
    values = {"name": name, "role": "annotator", "nature": "human", "attributes": "{}", "password": "", "invite": ""}
    columns = ", ".join([*values, "enabled", "added"])

    def verb(connection):
        text = f"INSERT INTO annotators ({columns}) VALUES ({', '.join(f':{key}' for key in values)}, true, 0)"
        connection.execute(sa.text(text), values)
        return name

    return verb


def committed(database, verb):
    """What a verb gives, once what it wrote is durable."""
    with database.write() as connection:
        return verb(connection)


def names(database) -> list[str]:
    with database.read() as connection:
        return list(connection.execute(sa.text("SELECT name FROM annotators ORDER BY name")).scalars())


def test_threads_write_one_after_the_other(database):
    def twice(name):
        def verb(connection):
            before = connection.execute(sa.text("SELECT count(*) FROM annotators")).scalar_one()
            add(name)(connection)
            return connection.execute(sa.text("SELECT count(*) FROM annotators")).scalar_one() - before

        return verb

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(partial(committed, database), [twice(f"a{number}") for number in range(20)])) == [1] * 20
    assert len(names(database)) == 20


def test_a_verb_that_raises_leaves_nothing(database):
    def refuse():
        raise NotAllowed("no")

    with pytest.raises(NotAllowed, match="no"):
        committed(database, lambda connection: (add("half")(connection), refuse()))
    with pytest.raises(StoreUnavailable, match=r"(?i)unique"):
        committed(database, lambda connection: (add("ann")(connection), add("ann")(connection)))
    assert names(database) == []
    assert committed(database, add("later")) == "later"


def test_nobody_reads_what_is_not_committed(database):
    written, go_on = threading.Event(), threading.Event()

    def verb(connection):
        add("ann")(connection)
        written.set()
        assert go_on.wait(30)

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(committed, database, verb)
        assert written.wait(30)
        assert names(database) == []
        go_on.set()
        first.result(30)
    assert names(database) == ["ann"]


def test_a_verb_whose_turn_does_not_come_is_refused_and_has_written_nothing(database, monkeypatch):
    monkeypatch.setattr(database_module, "BUSY_SECONDS", 0.05)
    with (
        database.write(),
        ThreadPoolExecutor(1) as pool,
        pytest.raises(StoreUnavailable, match="another thread has been writing"),
    ):
        pool.submit(committed, database, add("ann")).result(30)
    assert names(database) == []


def test_a_connection_lost_with_the_commit_under_way_is_told_as_unknown(store_on_postgresql):
    database = connect(store_on_postgresql)

    def lost(connection):
        add("lost")(connection)
        with database.read() as other:
            backend = connection.connection.dbapi_connection.info.backend_pid
            other.execute(sa.text(f"SELECT pg_terminate_backend({backend}, 5000)"))

    with pytest.raises(StoreUnavailable, match="may have been written: send it again under its key"):
        committed(database, lost)
    assert committed(database, add("later")) == "later"
    database.close()


def test_a_writer_whose_machine_is_gone_lets_go_of_the_head(store_on_postgresql, monkeypatch):
    """The server still believes in its connection, and nobody will ever use it again."""
    monkeypatch.setattr(database_module, "_LET_GO", sa.func.set_config("idle_in_transaction_session_timeout", "300ms", True))
    gone, other = connect(store_on_postgresql), connect(store_on_postgresql)

    def fall_silent():
        with gone.write() as connection:
            assert committed(other, add("later")) == "later"
            connection.execute(sa.text("SELECT 1"))

    with pytest.raises(StoreUnavailable, match="idle-in-transaction"):
        fall_silent()
    gone.close()
    other.close()


def test_a_store_that_was_opened_before_a_fork_is_refused_after_it(database, monkeypatch):
    committed(database, add("ann"))
    monkeypatch.setattr(database, "_process", os.getppid())
    with pytest.raises(StoreUnavailable, match="before a fork"):
        committed(database, add("bob"))
