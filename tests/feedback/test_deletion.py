"""A person is taken out of a store: no trace of the name stays, and votes stay under a pseudonym or go too."""

import subprocess
import sys

import pytest
import sqlalchemy as sa
from feedback_examples import HandClock, answer, enrol, pair

from penstock.feedback import schema
from penstock.feedback.deletion import forget
from penstock.feedback.errors import NotAllowed, NotFound, StoreUnavailable
from penstock.feedback.exchange.snapshot import Labels, content_hash, preference_pairs, snapshot
from penstock.feedback.policy import QueuePolicy
from penstock.feedback.records import Annotator, Submission
from penstock.feedback.store import Store

EQUAL = Labels(weights="equal")


@pytest.fixture
def store(place):
    with Store.open(place, QueuePolicy(gold_share=0, repeat_share=0), HandClock()) as opened:
        enrol(opened, "wanda.maximoff", "bob")
        opened.enrol(Annotator("root", role="admin", attributes={"region": "x"}))
        yield opened


def said(store):
    """Wanda votes, edits, takes back, skips; root takes one of her votes back, and excludes her for a while."""
    first, second, third, fourth = store.ask([pair(name) for name in "abcd"])
    for task in (first, second, third):
        answer(store, task, "wanda.maximoff", 1)
    store.submit(Submission("edit", first, "wanda.maximoff", "e", {"response": 0, "text": "mine"}))
    store.undo("wanda.maximoff", "u", 2)
    store.hand_out(fourth, "wanda.maximoff")
    store.submit(Submission("skip", fourth, "wanda.maximoff", "s", {}))
    store.retract("root", "r", 3, "no")
    store.exclude("root", "x", "wanda.maximoff", "for a while", since=1.0, until=2.0)
    answer(store, first, "bob", 1)
    store.ask([pair("only", overlap=2, reserved="wanda.maximoff,bob")])
    return first


def everything(store):
    """All that the tables hold, as text."""
    with store.database.read() as connection:
        return "\n".join(str(row) for table in schema.metadata.sorted_tables for row in connection.execute(sa.select(table)))


def test_votes_that_are_kept_count_as_before_and_the_name_is_gone(store):
    said(store)
    before = content_hash(preference_pairs(snapshot(store), EQUAL))
    pseudonym = forget(store, "root", "wanda.maximoff", "keep")
    assert "wanda" not in everything(store)
    assert content_hash(preference_pairs(snapshot(store), EQUAL)) == before
    assert store.annotator(pseudonym).nature == "human"
    assert not store.annotator(pseudonym).enabled
    [reserved] = [task for task in map(store.task, store.tasks()) if task.reserved]
    assert reserved.people == (pseudonym, "bob")
    assert store.next_task("bob") is not None
    store.verify()


def test_votes_that_go_free_their_seats_and_leave_no_gap(store):
    first = said(store)
    length = store.length()
    forget(store, "root", "wanda.maximoff", "remove")
    assert "mine" not in everything(store)
    assert store.length() == length
    assert store.verify().judgements()[0].annotator == "bob"
    [row] = preference_pairs(snapshot(store), EQUAL)
    assert (row["task"], row["votes"]) == (first, 1)
    enrol(store, "cas", "dee")
    answer(store, first, "cas", 1)  # two seats: bob's, and the one that is free again
    store.verify()


def test_a_log_cannot_be_changed_after_somebody_was_deleted(store):
    said(store)
    forget(store, "root", "wanda.maximoff", "keep")
    for table in schema.APPEND_ONLY[:5]:
        with pytest.raises(StoreUnavailable, match="append-only"), store.database.write() as connection:
            connection.execute(table.delete())


def test_only_another_administrator_deletes(store):
    for by, name, error in (("bob", "wanda.maximoff", NotAllowed), ("root", "root", NotAllowed), ("root", "nobody", NotFound)):
        with pytest.raises(error):
            forget(store, by, name, "keep")
    assert [who.name for who in store.annotators()] == ["bob", "root", "wanda.maximoff"]


def test_a_name_can_be_enrolled_anew(store):
    said(store)
    forget(store, "root", "wanda.maximoff", "keep")
    enrol(store, "wanda.maximoff")
    assert store.next_task("wanda.maximoff") is not None


def test_sessions_of_who_is_deleted_end(store):
    with store.database.write() as connection:
        row = {"id": "i", "annotator": "bob", "created": 0.0, "expires": 9e9}
        connection.execute(schema.sessions.insert().values(row))
    forget(store, "root", "bob", "keep")
    with store.database.read() as connection:
        assert connection.execute(sa.select(sa.func.count()).select_from(schema.sessions)).scalar_one() == 0


def test_no_kill_leaves_a_log_without_its_guard(tmp_path):
    """The guard is taken off and put back in one transaction."""
    place = tmp_path / "f.db"
    with Store.open(place) as store:
        enrol(store, "ann")
        store.enrol(Annotator("root", role="admin"))
        [task] = store.ask([pair("a")])
        answer(store, task, "ann", 1)
    killed = (
        "import os; from penstock.feedback import deletion, schema; from penstock.feedback.store import Store\n"
        "deletion.schema.protect = lambda *_: os._exit(9)\n"
        f"deletion.forget(Store.open({str(place)!r}), 'root', 'ann', 'keep')"
    )
    assert subprocess.run([sys.executable, "-c", killed], check=False).returncode == 9
    with Store.open(place) as store:
        assert [who.name for who in store.annotators()] == ["ann", "root"]
        with pytest.raises(StoreUnavailable, match="append-only"), store.database.write() as connection:
            connection.execute(schema.events.delete())
