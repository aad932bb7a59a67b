"""The log on SQLite and PostgreSQL: seats, leases, keys, undo, retract; what is durable and what is refused."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest
import sqlalchemy as sa
from feedback_examples import PLAIN, answer, answers, enrol, gold, pair, vote

from penstock.feedback import errors
from penstock.feedback.database import connect
from penstock.feedback.policy import QueuePolicy
from penstock.feedback.queue import display_order
from penstock.feedback.records import Item, Response, Submission, Task
from penstock.feedback.schema import metadata


@pytest.fixture
def store(either):
    either.policy = replace(PLAIN, lease_seconds=60)
    enrol(either, "ann", "bob", "cleo")
    return either


@pytest.fixture
def task(store):
    """A question that ann has on the screen."""
    [name] = store.ask([pair()])
    store.next_task("ann")
    return name


def test_a_task_comes_back_with_everything_that_went_in(store):
    first = Response("café", (1, 2, 3), (-0.5, -0.25), "run", "ppo", 7, {"temperature": 0.7}, "")
    item = Item("what?", (first, Response("no", source="human")), "gsm8k/0/4", {"language": "fr"})
    task = Task(item=item, axes=("helpful", "harmless"), guideline="3", strategy="disagreement", priority=2.5)
    assert store.ask([task]) == [task.id]
    assert store.task(task.id) == task


def test_asking_the_same_again_adds_nothing(store):
    assert store.ask([pair()]) == store.ask([pair()])
    assert store.counts()["ask"].tasks == 1


def test_a_vote_is_in_the_log_with_its_sides_latency_and_guideline(store, clock):
    [task] = store.ask([pair(guideline="v2")])
    lease = store.next_task("ann")
    clock.seconds += 12
    event = store.submit(vote(task, "ann", "k1", -2))
    assert store.events() == [event]
    assert (event.sequence, event.body["preference"], event.latency, event.guideline) == (1, -2, 12.0, "v2")
    assert event.order == lease.order
    assert sorted(event.order) == [0, 1]


def test_the_same_submission_again_gives_the_first_event_and_its_key_with_other_content_is_refused(store, task):
    first = store.submit(vote(task, "ann", "k1"))
    assert store.submit(vote(task, "ann", "k1")) == first
    with pytest.raises(errors.KeyReused, match="new key"):
        store.submit(vote(task, "ann", "k1", 3))
    assert store.length() == 1


def test_a_second_vote_of_an_annotator_is_refused(store, task):
    store.submit(vote(task, "ann", "k1"))
    with pytest.raises(errors.AlreadyAnswered, match="undo"):
        store.submit(vote(task, "ann", "k2", 3))
    with pytest.raises(errors.AlreadyAnswered):
        store.hand_out(task, "ann")


def test_a_late_vote_counts_while_a_seat_is_free(store, task, clock):
    [lease] = store.held("ann")
    clock.seconds += 61
    assert store.submit(vote(task, "ann", "k1")).order == lease.order


def test_a_late_vote_is_refused_when_others_have_the_seats(store, task, clock):
    clock.seconds += 61
    answer(store, task, "bob")
    store.next_task("cleo")
    with pytest.raises(errors.SeatTaken, match="next task"):
        store.submit(vote(task, "ann", "k1"))


def test_a_full_task_is_passed_over_and_found_again_when_a_lease_ends(store, clock):
    first, second = store.ask([pair("a", overlap=1), pair("b", overlap=1)])
    assert store.next_task("ann").task == first
    assert store.next_task("bob").task == second
    assert store.next_task("cleo") is None
    store.give_back(second, "bob")
    assert store.next_task("cleo").task == second
    clock.seconds += 60
    assert store.next_task("bob").task == first


def test_a_task_that_was_not_handed_out_cannot_be_answered(store):
    [task] = store.ask([pair()])
    with pytest.raises(errors.NotAllowed, match="not handed out"):
        store.submit(vote(task, "ann", "k1"))


def test_a_skip_leaves_the_seat_to_others_and_never_comes_back(store):
    [task] = store.ask([pair(overlap=1)])
    store.next_task("ann")
    store.submit(Submission("skip", task, "ann", "k1"))
    assert store.next_task("ann") is None
    assert store.next_task("bob").task == task


def test_undo_gives_the_seat_back_to_its_author_who_may_leave_it_to_others(store):
    [task] = store.ask([pair(overlap=1)])
    answer(store, task, "ann", 3)
    undone = store.undo("ann", "u1")
    assert (undone.target, undone.kind) == (1, "undo")
    assert store.next_task("bob") is None
    assert store.held("ann")[0].task == task
    store.submit(vote(task, "ann", "k2", -3))
    assert [event.body["preference"] for event in store.verify().judgements()] == [-3]
    store.undo("ann", "u2")
    store.give_back(task, "ann")
    assert store.next_task("bob").task == task


def test_the_same_undo_again_takes_nothing_else_back(store):
    answers(store, store.ask([pair("x"), pair("y")]), "ann")
    first = store.undo("ann", "u1")
    assert store.undo("ann", "u1") == first
    assert len(store.state().judgements()) == 1


def test_nobody_undoes_what_another_said_nor_an_undo(store, task):
    sequence = answer(store, task, "ann")
    with pytest.raises(errors.NothingToUndo):
        store.undo("bob", "u1", sequence)
    store.undo("ann", "u1")
    with pytest.raises(errors.NothingToUndo):
        store.undo("ann", "u2")


def test_retract_by_an_administrator_frees_the_seat_for_others_only(store):
    enrol(store, "root", role="admin")
    [task] = store.ask([pair(overlap=1)])
    sequence = answer(store, task, "ann")
    with pytest.raises(errors.NotAllowed, match="no administrator"):
        store.retract("bob", "r0", sequence, "")
    store.retract("root", "r1", sequence, "adversary")
    assert store.next_task("ann") is None
    assert store.next_task("bob").task == task
    assert store.verify().judgements() == []


def test_edits_and_critiques_come_beside_a_vote(store, task):
    store.submit(Submission("critique", task, "ann", "c1", {"response": None, "text": "both are rude"}))
    store.submit(vote(task, "ann", "k1"))
    store.submit(Submission("edit", task, "ann", "e1", {"response": 1, "text": "better"}))
    assert [event.kind for event in store.verify().remarks.values()] == ["critique", "edit"]


def test_adjudication_is_for_adjudicators(store):
    enrol(store, "judge", role="adjudicator")
    [task] = store.ask([pair(purpose="adjudication", overlap=1)])
    assert store.next_task("ann") is None
    with pytest.raises(errors.NotAllowed, match="adjudicator"):
        store.hand_out(task, "ann")
    assert store.next_task("judge").task == task


def test_nobody_settles_a_dispute_of_their_own(store):
    enrol(store, "party", "judge", role="adjudicator")
    [disputed] = store.ask([pair(overlap=1)])
    answer(store, disputed, "party")
    [task] = store.ask([replace(store.task(disputed), purpose="adjudication", origin=disputed)])
    assert store.next_task("party") is None
    with pytest.raises(errors.NotAllowed, match="has voted on"):
        store.hand_out(task, "party")
    assert store.next_task("judge").task == task


def test_urgent_tasks_come_first_then_the_oldest(store):
    names = store.ask([pair("a"), pair("b"), pair("c", priority=1.0)])
    first, second = store.next_task("ann"), store.next_task("ann")
    assert [first.task, second.task] == [names[2], names[0]]


def test_an_annotator_holds_only_so_many_tasks(store):
    store.ask([pair(name) for name in "abc"])
    store.next_task("ann")
    lease = store.next_task("ann")
    with pytest.raises(errors.NotAllowed, match="holds 2"):
        store.next_task("ann")
    store.give_back(lease.task, "ann")
    assert store.next_task("ann") is not None


def test_an_annotator_who_is_switched_off_gets_nothing(store):
    store.ask([pair()])
    enrol(store, "ann", enabled=False)
    with pytest.raises(errors.NotAllowed, match="switched off"):
        store.next_task("ann")


def test_simulated_annotators_stay_simulated(store):
    enrol(store, "sim", nature="simulated")
    with pytest.raises(errors.FeedbackError, match="stays so"):
        enrol(store, "sim")


def test_gold_and_repeats_are_mixed_in_at_their_shares(store):
    store.policy = QueuePolicy(gold_share=0.2, repeat_share=0.1, repeat_after=5)
    store.ask([pair(str(number)) for number in range(50)])
    store.ask([gold(f"g{number}") for number in range(25)])
    purposes, repeats = [], []
    for number in range(70):
        task = store.task(store.next_task("ann").task)
        purposes.append(task.purpose)
        if task.purpose == "repeat":
            repeats.append((number, task.origin))
        store.submit(vote(task.id, "ann", f"k{number}"))
    assert 7 <= purposes.count("gold") <= 22
    assert 3 <= len(repeats) <= 13
    judged_at = {event.task: event.sequence - 25 for event in store.events()}  # after 25 lines that say what is gold
    assert all(number + 1 - judged_at[origin] > 5 for number, origin in repeats)
    assert len({origin for _, origin in repeats}) == len(repeats)
    store.verify()


def test_the_order_of_sides_is_even_and_the_same_for_one_annotator():
    orders = [display_order(f"task {number}", "ann", 2, 0) for number in range(2000)]
    assert 930 < orders.count((1, 0)) < 1070
    assert display_order("task 7", "ann", 2, 0) == orders[7]


@pytest.mark.parametrize(
    ("kind", "body", "problem"),
    [
        ("vote", {"preference": 4}, "from -3 to 3"),
        ("vote", {"preference": True}, "from -3 to 3"),
        ("vote", {}, "preference=None"),
        ("vote", {"preference": 1, "both_bad": True}, "preference 0 only"),
        ("vote", {"preference": 1, "axes": {"unheard": 1}}, "overall"),
        ("vote", {"preference": 1, "extra": 1}, "unknown field 'extra'"),
        ("ranking", {"ranks": [1, 2]}, "answered by a vote"),
        ("edit", {"response": 2, "text": "x"}, "from 0 to 1"),
        ("edit", {"response": 0, "text": " "}, "give a text"),
        ("critique", {"response": 0, "text": "\ud800"}, "half a character"),
        ("undo", {}, "cannot be submitted"),
    ],
)
def test_wrong_bodies_are_refused_whole(store, kind, body, problem):
    [task] = store.ask([pair()])
    store.next_task("ann")
    with pytest.raises(errors.FeedbackError, match=problem):
        store.submit(Submission(kind, task, "ann", "k1", body))
    assert store.length() == 0


def test_the_log_refuses_every_change(store, task):
    answer(store, task, "ann")
    for table in ("events", "tasks", "items", "blobs"):
        for statement in (f"DELETE FROM {table}", f"UPDATE {table} SET {'hash' if table == 'blobs' else 'body'} = ''"):
            with pytest.raises(errors.FeedbackError, match="append-only"), store.database.write() as connection:
                connection.execute(sa.text(statement))
    assert store.verify().judgements()


def test_migrations_make_the_schema_that_the_code_reads(new_place):
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    with closing(connect(new_place)) as database, database.read() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["UPDATE alembic_version SET version_num = 'm9999'"], r"m9999 is not one that this Penstock knows.*update Penstock"),
        (
            ["DROP TABLE head", "UPDATE alembic_version SET version_num = 'ae1027a6acf'"],
            "database of something else, at its migration ae1027a6acf",
        ),
    ],
    ids=["a newer one", "migrations of something else"],
)
def test_a_schema_that_is_not_ours_is_refused_by_name(place, changes, said):
    with closing(connect(place)) as database, database.write(head=False) as connection:
        for change in changes:
            connection.execute(sa.text(change))
    with pytest.raises(errors.FeedbackError, match=said):
        connect(place)


def test_sqlite_is_synchronous_and_writes_ahead(tmp_path):
    with closing(connect(tmp_path / "f.db")) as database, database.read() as connection:
        settings = [connection.execute(sa.text(f"PRAGMA {name}")).scalar() for name in ("journal_mode", "synchronous")]
    assert settings == ["wal", 2]


def test_a_file_that_is_no_store_is_refused(tmp_path):
    (tmp_path / "f.db").write_bytes(b"no database at all" * 100)
    with pytest.raises(errors.FeedbackError, match="not a database"):
        connect(tmp_path / "f.db")


def test_a_database_of_something_else_is_refused_and_left_as_it_is(tmp_path):
    file = tmp_path / "places.db"
    with sqlite3.connect(file) as raw:
        raw.execute("CREATE TABLE bookmarks (url)")
    before = file.read_bytes()
    with pytest.raises(errors.FeedbackError, match=r"database of something else.*bookmarks"):
        connect(file)
    with sqlite3.connect(file) as raw:
        assert raw.execute("SELECT name FROM sqlite_master").fetchall() == [("bookmarks",)]
    raw.close()
    assert before[100:] == file.read_bytes()[100:]  # but for the header, which says that it writes ahead


def test_a_clock_that_goes_back_stops_nobody(store, clock):
    """A lease that had ended is alive again, though its seat was given away meanwhile: the next task is another one."""
    first, second = store.ask([pair("urgent", overlap=1, priority=5), pair("other", overlap=1)])
    store.next_task("ann")
    clock.seconds += 90
    store.give_back(store.next_task("bob").task, "bob")
    clock.seconds -= 72
    store.verify()
    assert store.next_task("cleo").task == second
    store.verify()
    clock.seconds += 180
    assert store.next_task("bob").task == first


def test_a_latency_is_unknown_where_the_clock_went_back(store, task, clock):
    clock.seconds -= 50
    assert store.submit(vote(task, "ann", "k")).latency == -1


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_a_name_that_a_database_cannot_hold_is_refused_and_no_sign_that_the_store_is_down(either, name):
    for ask in (either.annotator, either.task, either.next_task):
        with pytest.raises(errors.FeedbackError) as refused:
            ask(name)
        assert not isinstance(refused.value, errors.StoreUnavailable)


def test_a_number_that_a_database_cannot_hold_is_refused_and_nothing_is_kept(either):
    with pytest.raises(errors.FeedbackError, match="no store can hold"):
        either.ask([pair("fine"), pair("huge", overlap=10**30)])
    assert either.tasks() == []


@pytest.mark.parametrize("change", ["judgements = 0", "open = false", "free_at = 1e12", "project = 'legal'"])
def test_an_index_that_disagrees_with_the_log_is_found(store, task, change):
    answer(store, task, "ann")
    with store.database.write() as connection:
        connection.execute(sa.text(f"UPDATE progress SET {change}"))
    with pytest.raises(errors.FeedbackError, match="disagree"):
        store.verify()
