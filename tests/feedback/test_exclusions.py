"""A person's work, or some of it, does not count; it stays in the log, and counts again when the exclusion is taken back."""

import sqlite3

import pytest
import sqlalchemy as sa
from feedback_examples import HandClock, answer, pair, without_projects

from penstock.feedback import schema
from penstock.feedback.database import connect
from penstock.feedback.errors import FeedbackError, KeyReused, NotAllowed, NotFound, NothingToUndo
from penstock.feedback.exchange.snapshot import Labels, content_hash, corrections, preference_pairs, snapshot
from penstock.feedback.policy import QueuePolicy
from penstock.feedback.records import Annotator, Submission
from penstock.feedback.store import Store

EQUAL = Labels(weights="equal")


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "f.db", QueuePolicy(gold_share=0, repeat_share=0), HandClock()) as opened:
        for name in ("ann", "bob"):
            opened.enrol(Annotator(name))
        opened.enrol(Annotator("root", role="admin"))
        yield opened


def judged(store, names=("one", "two", "three"), seconds=100.0):
    """Ann and Bob, who says the opposite, judge some pairs, a hundred seconds apart from 1000 on."""
    for name in names:
        [task] = store.ask([pair(name)])
        answer(store, task, "ann", 1)
        answer(store, task, "bob", -1)
        store.now.seconds += seconds


def exported(store):
    rows = preference_pairs(snapshot(store), EQUAL)
    return [(row["prompt"].removeprefix("prompt "), row["chosen"].split()[0], row["votes"]) for row in rows]


def test_the_work_of_a_person_is_taken_out_and_counts_again(store):
    judged(store)
    before = content_hash(preference_pairs(snapshot(store), EQUAL))
    event = store.exclude("root", "k1", "bob", "answers at random")
    assert exported(store) == [("one", "first", 1), ("two", "first", 1), ("three", "first", 1)]
    assert content_hash(preference_pairs(snapshot(store), EQUAL)) != before
    store.include("root", "k2", event.sequence, "a mistake of ours")
    assert exported(store) == []
    assert content_hash(preference_pairs(snapshot(store), EQUAL)) == before
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
    rows = preference_pairs(snapshot(store, until), EQUAL)
    store.exclude("root", "k1", "ann", "why")
    assert preference_pairs(snapshot(store, until), EQUAL) == rows
    assert preference_pairs(snapshot(store), EQUAL) != rows


def test_edits_of_who_is_excluded_are_no_corrections(store):
    [task] = store.ask([pair()])
    store.hand_out(task, "ann")
    store.submit(Submission("edit", task, "ann", "e", {"response": 0, "text": "better"}))
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


def test_an_exclusion_cannot_be_changed_in_the_database(store, tmp_path):
    store.exclude("root", "k", "ann", "why")
    with sqlite3.connect(tmp_path / "f.db") as raw, pytest.raises(sqlite3.IntegrityError, match="append-only"):
        raw.execute("DELETE FROM exclusions")


def test_an_older_store_gets_the_table_and_keeps_its_log(tmp_path):
    place = tmp_path / "old.db"
    with Store.open(place, QueuePolicy(gold_share=0, repeat_share=0), HandClock()) as store:
        store.enrol(Annotator("ann"))
        store.enrol(Annotator("bob"))
        judged(store)
        before = store.events()
    without_projects(place)
    with sqlite3.connect(place) as raw:  # as the version before wrote it
        raw.execute("DROP TABLE exclusions")
        raw.execute("ALTER TABLE annotators DROP COLUMN quota")
        raw.execute("UPDATE alembic_version SET version_num = 'm0005'")
    with Store.open(place) as store:
        assert store.events() == before
        store.enrol(Annotator("root", role="admin"))
        store.exclude("root", "k", "ann", "why")
        store.verify()
    database = connect(place)
    with pytest.raises(FeedbackError, match="append-only"), database.write() as connection:
        connection.execute(sa.delete(schema.exclusions))
    database.close()
