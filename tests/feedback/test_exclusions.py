"""A person's work, or some of it, does not count; it stays in the log, and counts again when the exclusion is taken back."""

import sqlite3

import pytest
import sqlalchemy as sa
from feedback_examples import answer, enrol, pair, rows_of, say, without_projects

from penstock.feedback import schema
from penstock.feedback.errors import FeedbackError, KeyReused, NotAllowed, NotFound, NothingToUndo
from penstock.feedback.exchange.snapshot import content_hash, corrections, snapshot
from penstock.feedback.store import Store


@pytest.fixture
def store(store):
    enrol(store, "ann", "bob")
    enrol(store, "root", role="admin")
    return store


def judged(store, names=("one", "two", "three"), seconds=100.0):
    """Ann and Bob, who says the opposite, judge some pairs, a hundred seconds apart from 1000 on."""
    for name in names:
        [task] = store.ask([pair(name)])
        answer(store, task, "ann", 1)
        answer(store, task, "bob", -1)
        store.now.seconds += seconds


def exported(store):
    return [(row["prompt"].removeprefix("prompt "), row["chosen"].split()[0], row["votes"]) for row in rows_of(store)]


def test_the_work_of_a_person_is_taken_out_and_counts_again(store):
    judged(store)
    before = content_hash(rows_of(store))
    event = store.exclude("root", "k1", "bob", "answers at random")
    assert exported(store) == [("one", "first", 1), ("two", "first", 1), ("three", "first", 1)]
    assert content_hash(rows_of(store)) != before
    store.include("root", "k2", event.sequence, "a mistake of ours")
    assert exported(store) == []
    assert content_hash(rows_of(store)) == before
    store.verify()


def test_a_period_is_from_its_beginning_to_before_its_end(store):
    judged(store)  # at 1000, 1100, 1200
    store.exclude("root", "k1", "bob", "was ill", since=1100, until=1200)
    assert exported(store) == [("two", "first", 1)]
    store.exclude("root", "k2", "bob", "still ill", since=1200)
    assert [name for name, _, _ in exported(store)] == ["two", "three"]
    judged(store, ["later"])
    assert [name for name, _, _ in exported(store)] == ["two", "three", "later"]


def test_what_was_read_before_an_exclusion_is_read_again_as_it_was(store):
    judged(store)
    until = store.length()
    rows = rows_of(store, until=until)
    store.exclude("root", "k1", "ann", "why")
    assert rows_of(store, until=until) == rows
    assert rows_of(store) != rows


def test_edits_of_who_is_excluded_are_no_corrections(store):
    [task] = store.ask([pair()])
    say(store, "edit", task, "ann", response=0, text="better")
    assert len(corrections(snapshot(store))) == 1
    store.exclude("root", "k", "ann", "why")
    assert corrections(snapshot(store)) == []


def test_the_same_act_again_is_one_event_and_another_under_its_key_is_refused(store):
    first = store.exclude("root", "k", "ann", "why")
    assert store.exclude("root", "k", "ann", "why") == first
    with pytest.raises(KeyReused):
        store.exclude("root", "k", "bob", "why")
    taken_back = store.include("root", "i", first.sequence, "why not")
    assert store.include("root", "i", first.sequence, "why not") == taken_back
    with pytest.raises(NothingToUndo):
        store.include("root", "again", first.sequence, "why not")


def test_only_administrators_exclude_and_only_somebody_who_is_there(store):
    with pytest.raises(NotAllowed):
        store.exclude("ann", "k", "bob", "a rival")
    with pytest.raises(NotFound):
        store.exclude("root", "k", "nobody", "why")
    with pytest.raises(FeedbackError, match="before it begins"):
        store.exclude("root", "k", "ann", "why", since=5, until=5)
    with pytest.raises(NothingToUndo):
        store.include("root", "k", 1, "why")
    assert store.length() == 0


def cannot_be_changed(store):
    with pytest.raises(FeedbackError, match="append-only"), store.database.write() as connection:
        connection.execute(sa.delete(schema.exclusions))
    return True


def test_an_exclusion_cannot_be_changed_in_the_database(store):
    store.exclude("root", "k", "ann", "why")
    assert cannot_be_changed(store)


def test_an_older_store_gets_the_table_and_keeps_its_log(store, file):
    judged(store)
    before = store.events()
    store.close()
    without_projects(file)
    with sqlite3.connect(file) as raw:  # as the version before wrote it
        raw.execute("DROP TABLE exclusions")
        raw.execute("ALTER TABLE annotators DROP COLUMN quota")
        raw.execute("UPDATE alembic_version SET version_num = 'm0005'")
    with Store.open(file) as again:
        assert again.events() == before
        again.exclude("root", "k", "ann", "why")
        again.verify()
        assert cannot_be_changed(again)
