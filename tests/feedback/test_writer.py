"""Group commit: one transaction for the verbs of many threads, each all or nothing; what fails, and when the writer ends."""

from __future__ import annotations

import os
import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import sqlalchemy as sa
from feedback_examples import enrol, pair, vote

from penstock.feedback import database as database_module
from penstock.feedback import writer
from penstock.feedback.database import connect
from penstock.feedback.errors import NotAllowed, StoreUnavailable
from penstock.feedback.migrations.versions.m0004_free_seats import FULL_UNTIL
from penstock.feedback.queue import QueuePolicy
from penstock.feedback.records import Annotator
from penstock.feedback.store import Store


@pytest.fixture
def database(place):
    opened = connect(place)
    yield opened
    opened.close()


def add(name: str):
    """A verb that adds an annotator."""
    values = {"name": name, "role": "annotator", "nature": "human", "attributes": "{}", "password": "", "invite": ""}
    columns = ", ".join([*values, "enabled", "added"])

    def verb(connection):
        text = f"INSERT INTO annotators ({columns}) VALUES ({', '.join(f':{key}' for key in values)}, true, 0)"
        connection.execute(sa.text(text), values)
        return name

    return verb


def names(database) -> list[str]:
    with database.read() as connection:
        return list(connection.execute(sa.text("SELECT name FROM annotators ORDER BY name")).scalars())


class Held:
    """Keeps the writer in a verb of its own while others gather, and counts transactions."""

    def __init__(self, database) -> None:
        self.database, self.entered, self.go_on, self.transactions = database, threading.Event(), threading.Event(), 0
        whole = database._writer._transaction

        @contextmanager
        def counted():
            self.transactions += 1
            with whole() as connection:
                yield connection

        database._writer._transaction = counted

    def verb(self, connection) -> None:
        self.entered.set()
        assert self.go_on.wait(30)

    def gather(self, pool, *verbs):
        """Outcomes of verbs that were all asked for while the writer was busy."""
        first = pool.submit(self.database.commit, self.verb)
        assert self.entered.wait(30)
        outcomes, deadline = [], 3000
        for verb in verbs:
            waiting = self.database._writer._waiting.qsize()
            outcomes.append(pool.submit(self.database.commit, verb))
            while self.database._writer._waiting.qsize() == waiting and deadline:
                deadline -= 1
                threading.Event().wait(0.01)
        self.go_on.set()
        first.result(30)
        return outcomes


def test_verbs_that_gather_go_into_one_transaction(database):
    held = Held(database)
    with ThreadPoolExecutor(8) as pool:
        outcomes = held.gather(pool, *(add(f"a{number}") for number in range(6)))
        assert [outcome.result(30) for outcome in outcomes] == [f"a{number}" for number in range(6)]
    assert held.transactions == 2, "the one that held the writer, and one for six verbs"
    assert names(database) == [f"a{number}" for number in range(6)]


def test_a_verb_that_raises_leaves_nothing_and_takes_nobody_with_it(database):
    def half(connection):
        add("half")(connection)
        raise NotAllowed("no")

    held = Held(database)
    with ThreadPoolExecutor(8) as pool:
        before, refused, after = held.gather(pool, add("before"), half, add("after"))
        assert (before.result(30), after.result(30)) == ("before", "after")
        with pytest.raises(NotAllowed, match="no"):
            refused.result(30)
    assert names(database) == ["after", "before"]


def test_a_verb_that_raises_alone_leaves_nothing(database):
    with pytest.raises(NotAllowed, match="no"):
        database.commit(lambda connection: (add("half")(connection), refuse()))
    with pytest.raises(StoreUnavailable, match=r"(?i)unique"):
        database.commit(lambda connection: (add("ann")(connection), add("ann")(connection)))
    assert names(database) == []


def refuse():
    raise NotAllowed("no")


def test_what_the_database_refuses_takes_nobody_with_it(database):
    held = Held(database)
    with ThreadPoolExecutor(8) as pool:
        first, again, other = held.gather(pool, add("ann"), add("ann"), add("bob"))
        assert (first.result(30), other.result(30)) == ("ann", "bob")
        with pytest.raises(StoreUnavailable, match=r"(?i)unique"):
            again.result(30)
    assert names(database) == ["ann", "bob"]


def test_a_later_verb_sees_what_an_earlier_one_of_its_transaction_did(database):
    def count(connection):
        return connection.execute(sa.text("SELECT count(*) FROM annotators")).scalar_one()

    held = Held(database)
    with ThreadPoolExecutor(8) as pool:
        outcomes = held.gather(pool, count, add("ann"), count)
        assert [outcome.result(30) for outcome in outcomes] == [0, "ann", 1]


def test_nobody_reads_what_is_not_committed(database):
    held = Held(database)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(database.commit, lambda connection: (add("ann")(connection), held.verb(connection)))
        assert held.entered.wait(30)
        assert names(database) == []
        held.go_on.set()
        first.result(30)
    assert names(database) == ["ann"]


def test_when_the_transaction_is_lost_every_verb_of_it_fails(tmp_path):
    database = connect(tmp_path / "f.db")

    def lose(connection):  # as SQLite itself does when the disk is full
        connection.connection.dbapi_connection.execute("ROLLBACK")
        raise ValueError("the disk is full")

    held = Held(database)
    with ThreadPoolExecutor(8) as pool:
        outcomes = held.gather(pool, add("before"), lose, add("after"))
        for outcome in outcomes:
            with pytest.raises(StoreUnavailable, match="nothing was written"):
                outcome.result(30)
    assert names(database) == []
    assert database.commit(add("later")) == "later"
    database.close()


def test_a_connection_lost_with_the_commit_under_way_is_told_as_unknown(empty_postgresql):
    database = connect(empty_postgresql)
    whole = database._writer._transaction

    @contextmanager
    def lost():
        with whole() as connection:
            yield connection
            connection.execute(sa.text("SELECT pg_terminate_backend(pg_backend_pid())"))

    database._writer._transaction = lost
    with pytest.raises(StoreUnavailable, match="may have been written: send it again under its key"):
        database.commit(add("lost"))
    database._writer._transaction = whole
    assert database.commit(add("later")) == "later"
    database.close()


def test_a_writer_whose_machine_is_gone_lets_go_of_the_head(empty_postgresql, monkeypatch):
    """The server still believes in its connection, and nobody will ever use it again."""
    monkeypatch.setattr(database_module, "_LET_GO", sa.func.set_config("idle_in_transaction_session_timeout", "300ms", True))
    gone, other = connect(empty_postgresql), connect(empty_postgresql)

    def fall_silent():
        with gone.write() as connection:
            assert other.commit(add("later")) == "later"
            connection.execute(sa.text("SELECT 1"))

    with pytest.raises(StoreUnavailable, match="idle-in-transaction"):
        fall_silent()
    gone.close()
    other.close()


def test_who_gives_up_while_waiting_has_written_nothing(database):
    held = Held(database)
    database._writer._seconds = 0.05
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(database._writer.run, held.verb)
        assert held.entered.wait(30)
        with pytest.raises(StoreUnavailable, match="nothing was written, try again later"):
            database.commit(add("ann"))
        with pytest.raises(StoreUnavailable, match="it may have been written: send it again under its key"):
            first.result(30)
        held.go_on.set()
    database._writer._seconds = 30
    assert database.commit(add("bob")) == "bob"
    assert names(database) == ["bob"]


def test_only_so_many_wait(database, monkeypatch):
    held = Held(database)
    database._writer._waiting = queue.Queue(1)
    monkeypatch.setattr(writer, "MOST_WAITING", 1)
    with ThreadPoolExecutor(2) as pool:
        outcomes = held.gather(pool, add("ann"))
        outcomes[0].result(30)
        held.go_on.clear()
        held.entered.clear()
        waiting = pool.submit(database.commit, held.verb), held.entered.wait(30) and pool.submit(database.commit, add("bob"))
        while not database._writer._waiting.full():
            threading.Event().wait(0.01)
        database._writer._seconds = 0.05
        with pytest.raises(StoreUnavailable, match="1 acts wait already; nothing was written"):
            database.commit(add("cleo"))
        held.go_on.set()
        assert [outcome.result(30) for outcome in waiting] == [None, "bob"]
    assert names(database) == ["ann", "bob"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_dead_writer_refuses_everybody(database):
    def kill(connection):
        raise SystemExit("killed")

    held = Held(database)
    with ThreadPoolExecutor(8) as pool:
        outcomes = held.gather(pool, add("before"), kill, add("after"))
        for outcome in outcomes:
            with pytest.raises(StoreUnavailable, match=r"nothing was written|writer has died"):
                outcome.result(30)
    with pytest.raises(StoreUnavailable, match=r"writer has died .*open the store again"):
        database.commit(add("later"))
    assert names(database) == []


def test_closing_writes_what_waits_and_refuses_what_comes_later(database):
    held = Held(database)
    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(database.commit, held.verb)
        assert held.entered.wait(30)
        second = pool.submit(database.commit, add("ann"))
        while not database._writer._waiting.qsize():
            threading.Event().wait(0.01)
        closing = pool.submit(database._writer.close)
        while not database._writer._end:
            threading.Event().wait(0.01)
        with pytest.raises(StoreUnavailable, match="it is closed"):
            database.commit(add("bob"))
        held.go_on.set()
        closing.result(30)
        assert (first.result(30), second.result(30)) == (None, "ann")
    assert names(database) == ["ann"]


def test_a_verb_may_not_ask_for_another(database):
    with pytest.raises(StoreUnavailable, match="a verb asks for another verb"):
        database.commit(lambda _: database.commit(add("ann")))


def test_a_store_that_was_opened_before_a_fork_is_refused_after_it(tmp_path):
    database = connect(tmp_path / "f.db")
    database.commit(add("ann"))
    database._writer._process = os.getppid()
    with pytest.raises(StoreUnavailable, match="before a fork"):
        database.commit(add("bob"))
    database._writer._process = os.getpid()
    database.close()


def test_a_full_task_is_passed_over_and_found_again_when_a_lease_ends(place):
    now = [1000.0]
    with Store.open(place, QueuePolicy(lease_seconds=60, gold_share=0, repeat_share=0), lambda: now[0]) as store:
        enrol(store, "ann", "bob", "cleo")
        first, second = store.ask([pair("a", overlap=1), pair("b", overlap=1)])
        assert store.next_task("ann").task == first
        assert store.next_task("bob").task == second
        assert store.next_task("cleo") is None
        store.give_back(second, "bob")
        assert store.next_task("cleo").task == second
        now[0] += 60
        assert store.next_task("bob").task == first


def test_a_seat_is_free_again_after_a_skip_an_undo_and_a_retract(place):
    with Store.open(place, QueuePolicy(gold_share=0, repeat_share=0)) as store:
        enrol(store, "ann", "bob", "cleo")
        store.enrol(Annotator("root", role="admin"))
        [task] = store.ask([pair(overlap=1)])
        store.next_task("ann")
        store.submit(vote(task, "ann", "k1"))
        assert store.next_task("bob") is None
        store.undo("ann", "u1")
        store.give_back(task, "ann")
        assert store.next_task("bob").task == task
        event = store.submit(vote(task, "bob", "k2"))
        assert store.next_task("cleo") is None
        store.retract("root", "r1", event.sequence, "")
        assert store.next_task("cleo").task == task
        store.verify()


def test_migrating_finds_when_seats_of_older_leases_are_free(place):
    with Store.open(place, QueuePolicy(gold_share=0, repeat_share=0)) as store:
        enrol(store, "ann", "bob")
        full, half, done = store.ask([pair("full", overlap=1), pair("half", overlap=2), pair("done", overlap=1)])
        store.hand_out(full, "ann")
        store.hand_out(half, "ann")
        store.hand_out(done, "bob")
        store.submit(vote(done, "bob", "k1"))
        with store.database.write() as connection:
            connection.execute(sa.text("UPDATE progress SET free_at = 5e12"))
            connection.execute(sa.text(FULL_UNTIL), {"now": store.now()})
        store.verify()
        assert store.next_task("bob").task == half
        assert store.next_task("bob") is None
