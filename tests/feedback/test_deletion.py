"""A person is taken out of a store: no trace of the name stays, and votes stay under a pseudonym or go too."""

import subprocess
import sys

import pytest
import sqlalchemy as sa
from feedback_examples import answer, answers, asked, enrol, pair, rows_of, say

from penstock.feedback import schema
from penstock.feedback.deletion import forget
from penstock.feedback.errors import NotAllowed, NotFound, StoreUnavailable
from penstock.feedback.exchange.snapshot import content_hash
from penstock.feedback.records import Submission
from penstock.feedback.store import Store

WANDA = "wanda.maximoff"


@pytest.fixture
def store(either):
    enrol(either, WANDA, "bob")
    enrol(either, "root", role="admin", attributes={"region": "x"})
    return either


def said(store):
    """Wanda votes, edits, takes back, skips; root takes one of her votes back, and excludes her for a while."""
    first, second, third, fourth = store.ask([pair(name) for name in "abcd"])
    answers(store, (first, second, third), WANDA)
    store.submit(Submission("edit", first, WANDA, "e", {"response": 0, "text": "mine"}))
    store.undo(WANDA, "u", 2)
    say(store, "skip", fourth, WANDA)
    store.retract("root", "r", 3, "no")
    store.exclude("root", "x", WANDA, "for a while", since=1.0, until=2.0)
    answer(store, first, "bob", 1)
    store.ask([pair("only", overlap=2, reserved=f"{WANDA},bob")])
    return first


def everything(store):
    """All that the tables hold, as text."""
    with store.database.read() as connection:
        return "\n".join(str(row) for table in schema.metadata.sorted_tables for row in connection.execute(sa.select(table)))


def test_votes_that_are_kept_count_as_before_and_the_name_is_gone(store):
    said(store)
    before = content_hash(rows_of(store))
    pseudonym = forget(store, "root", WANDA, "keep")
    assert "wanda" not in everything(store)
    assert content_hash(rows_of(store)) == before
    assert store.annotator(pseudonym).nature == "human"
    assert not store.annotator(pseudonym).enabled
    [reserved] = [task for task in asked(store) if task.reserved]
    assert reserved.people == (pseudonym, "bob")
    assert store.next_task("bob") is not None
    store.verify()


def test_votes_that_go_free_their_seats_and_leave_no_gap(store):
    first = said(store)
    length = store.length()
    forget(store, "root", WANDA, "remove")
    assert "mine" not in everything(store)
    assert store.length() == length
    assert store.verify().judgements()[0].annotator == "bob"
    [row] = rows_of(store)
    assert (row["task"], row["votes"]) == (first, 1)
    enrol(store, "cas", "dee")
    answer(store, first, "cas", 1)  # two seats: bob's, and the one that is free again
    store.verify()


def test_only_another_administrator_deletes(store):
    for by, name, error in (("bob", WANDA, NotAllowed), ("root", "root", NotAllowed), ("root", "nobody", NotFound)):
        with pytest.raises(error):
            forget(store, by, name, "keep")
    assert [who.name for who in store.annotators()] == ["bob", "root", WANDA]


def test_afterwards_the_name_can_be_enrolled_anew_and_the_log_cannot_be_changed(store):
    said(store)
    forget(store, "root", WANDA, "keep")
    enrol(store, WANDA)
    assert store.next_task(WANDA) is not None
    for table in schema.APPEND_ONLY[:5]:
        with pytest.raises(StoreUnavailable, match="append-only"), store.database.write() as connection:
            connection.execute(table.delete())


def test_sessions_of_who_is_deleted_end(store):
    with store.database.write() as connection:
        row = {"id": "i", "annotator": "bob", "created": 0.0, "expires": 9e9}
        connection.execute(schema.sessions.insert().values(row))
    forget(store, "root", "bob", "keep")
    with store.database.read() as connection:
        assert connection.execute(sa.select(sa.func.count()).select_from(schema.sessions)).scalar_one() == 0


def test_no_kill_leaves_a_log_without_its_guard(file):
    """The guard is taken off and put back in one transaction."""
    with Store.open(file) as store:
        enrol(store, "ann")
        enrol(store, "root", role="admin")
        answers(store, store.ask([pair("a")]), "ann")
    killed = (
        "import os; from penstock.feedback import deletion, schema; from penstock.feedback.store import Store\n"
        "deletion.schema.protect = lambda *_: os._exit(9)\n"
        f"deletion.forget(Store.open({str(file)!r}), 'root', 'ann', 'keep')"
    )
    assert subprocess.run([sys.executable, "-c", killed], check=False).returncode == 9
    with Store.open(file) as store:
        assert [who.name for who in store.annotators()] == ["ann", "root"]
        with pytest.raises(StoreUnavailable, match="append-only"), store.database.write() as connection:
            connection.execute(schema.events.delete())
