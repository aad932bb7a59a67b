"""Several projects in one store: whose tasks, votes, gold and numbers are whose; and older stores."""

import sqlite3

import pytest
import sqlalchemy as sa
from feedback_examples import HandClock, answer, pair, vote, without_projects

from penstock.feedback import projects, schema
from penstock.feedback.deletion import forget
from penstock.feedback.errors import FeedbackError, NotAllowed, NotFound
from penstock.feedback.exchange.questions import ask
from penstock.feedback.exchange.snapshot import content_hash, preference_pairs, snapshot
from penstock.feedback.policy import QueuePolicy
from penstock.feedback.projects import Project
from penstock.feedback.records import Annotator, Submission
from penstock.feedback.store import Store

PLAIN = QueuePolicy(gold_share=0, repeat_share=0)


@pytest.fixture
def store(place):
    """ann in both projects, bob in the first, eve in the second."""
    with Store.open(place, PLAIN, HandClock()) as opened:
        projects.change(opened, Project("legal"), new=True)
        for name, project in (("ann", "default"), ("bob", "default"), ("ann", "legal"), ("eve", "legal")):
            opened.enrol(Annotator(name), project)
        opened.enrol(Annotator("root", role="admin"))
        yield opened


def test_a_member_is_handed_only_tasks_of_the_project_asked_for(store):
    mine, theirs = store.ask([pair("a"), pair("b", project="legal")])
    assert store.next_task("ann").task == mine
    assert store.next_task("ann", project="legal").task == theirs
    assert store.next_task("eve", project="legal").task == theirs
    with pytest.raises(NotAllowed, match="no member of project default"):
        store.next_task("eve")
    assert [lease.task for lease in store.held("ann", "legal")] == [theirs]


def test_nobody_but_a_member_takes_or_answers_a_task_or_keeps_on_doing_so(store):
    [task] = store.ask([pair("b", project="legal")])
    with pytest.raises(NotAllowed):
        store.hand_out(task, "bob")
    with pytest.raises(NotAllowed):
        store.submit(vote(task, "bob", "k"))
    answer(store, task, "eve")
    projects.change(store, store.project("legal"), remove=["eve"])
    for refused in (
        lambda: store.submit(Submission("critique", task, "eve", "c", {"text": "more"})),
        lambda: store.undo("eve", "u"),
        lambda: store.hand_out(task, "eve"),
    ):
        with pytest.raises(NotAllowed):
            refused()
    assert store.length() == 1


def test_a_member_who_leaves_frees_the_seats_that_they_hold(store):
    [task] = store.ask([pair("b", overlap=1, project="legal")])
    store.hand_out(task, "eve")
    projects.change(store, store.project("legal"), remove=["eve"])
    assert store.next_task("ann", project="legal").task == task
    store.verify()


def test_the_same_question_is_another_task_in_another_project_and_votes_do_not_mix(store):
    one, other = store.ask([pair("x"), pair("x", project="legal")])
    assert one != other
    answer(store, one, "ann", 1)
    answer(store, other, "ann", -1)
    for project, chosen in (("default", "first x"), ("legal", "second x")):
        [row] = preference_pairs(snapshot(store, project=project))
        assert (row["chosen"], row["votes"]) == (chosen, 1)
    assert store.counts()["ask"].judgements == store.counts("legal")["ask"].judgements == 1
    assert ask(store, [pair("x", project="legal"), pair("y", project="legal")]) == 1


def test_a_question_for_somebody_who_is_no_member_is_refused(store):
    with pytest.raises(FeedbackError, match="bob: no member of project legal"):
        ask(store, [pair("x", reserved="ann,bob", project="legal")])
    assert ask(store, [pair("x", reserved="ann,eve", project="legal")]) == 1


def test_what_a_run_has_read_of_one_project_keeps_its_hash_while_another_one_grows(store):
    one, other = store.ask([pair("x"), pair("x", project="legal")])
    answer(store, one, "ann")
    before = content_hash(preference_pairs(snapshot(store)))
    answer(store, other, "eve")
    assert content_hash(preference_pairs(snapshot(store))) == before


def test_an_exclusion_counts_in_its_project_alone_or_in_all(store):
    tasks = store.ask([pair("x"), pair("x", project="legal")])
    for task in tasks:
        answer(store, task, "ann")
    event = store.exclude("root", "k", "ann", "why", project="legal")
    counts = [len(snapshot(store, project=name).state.judgements()) for name in ("default", "legal")]
    assert counts == [1, 0]
    assert len(store.state().judgements()) == 1
    store.include("root", "i", event.sequence, "why not")
    store.exclude("root", "all", "ann", "why")
    assert [snapshot(store, project=name).state.judgements() for name in ("default", "legal")] == [[], []]


def test_quota_and_qualification_are_a_projects_own(store):
    policy = {"qualify": 1, "qualified": 1.0, "quota": 2}
    projects.change(store, Project("legal", policy=policy))
    gold = pair("g", purpose="gold", overlap=0, gold={"preference": 1}, project="legal")
    store.ask([gold, pair("a"), pair("b", project="legal"), pair("c", project="legal")])
    assert store.next_task("ann", project="legal").task == gold.id
    store.submit(vote(gold.id, "ann", "wrong", -1))
    assert store.next_task("ann", project="legal") is None  # excluded there by the store itself
    assert store.next_task("ann") is not None
    assert store.next_task("eve", project="legal").task == gold.id
    store.submit(vote(gold.id, "eve", "right", 1))
    second = store.next_task("eve", project="legal")
    store.submit(vote(second.task, "eve", "two"))
    assert store.next_task("eve", project="legal") is None  # two are the quota


def test_repeats_are_of_the_same_project(place):
    with Store.open(place, QueuePolicy(gold_share=0, repeat_share=0.5, repeat_after=1), HandClock()) as store:
        projects.change(store, Project("legal"), new=True)
        for project in ("default", "legal"):
            store.enrol(Annotator("ann"), project)
        answer(store, store.ask([pair("a")])[0], "ann")
        store.ask([pair(f"b{number}", project="legal") for number in range(20)])
        seen = []
        while lease := store.next_task("ann", project="legal"):
            seen.append(store.task(lease.task))
            store.submit(vote(lease.task, "ann", f"k{len(seen)}"))
        assert {task.project for task in seen} == {"legal"}
        assert any(task.purpose == "repeat" for task in seen)


def test_the_only_project_needs_no_name_and_several_do(place):
    with Store.open(place, PLAIN) as store:
        assert store.project().name == "default"
        projects.change(store, Project("legal"), new=True)
        assert store.project().name == "legal"  # nothing was ever asked in the first one
        store.ask([pair()])
        with pytest.raises(FeedbackError, match="which project\\? there are: default, legal"):
            store.project()
        with pytest.raises(NotFound, match="no project 'legla'; there are: default, legal"):
            store.project("legla")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"forms": ("vote",)}, "give some of: pair"),
        ({"overlap": 0}, "at least 1"),
        ({"scale": (3.0, 3.0)}, "a higher one"),
        ({"guideline": "2"}, "its versions are: none"),
        ({"policy": {"qualify": "3"}}, "qualify='3'"),
        ({"policy": {"held": 3}}, "held=3"),
        ({"policy": {"gold_share": 0.1}}, "together"),
        ({"policy": {"gold_share": 0.4, "repeat_share": 0.4}}, "one half"),
        ({"name": "a b"}, "project 'a b'"),
    ],
)
def test_settings_that_cannot_be_are_refused(fields, said):
    with pytest.raises(FeedbackError, match=said):
        Project(**{"name": "legal", **fields})


def test_a_version_of_a_guideline_keeps_its_text(store):
    project = store.project("legal").with_guideline("1", "# Law").with_guideline("2", "# New law")
    projects.change(store, project)
    assert store.project("legal").guideline == "2"
    assert store.project("legal").guidelines["1"] == "# Law"
    with pytest.raises(FeedbackError, match="version 1 of the guideline has another text"):
        project.with_guideline("1", "# Other")


def test_a_form_that_the_project_does_not_ask_is_refused_with_everything_beside_it(store):
    projects.change(store, Project("legal", forms=("rating",)))
    with pytest.raises(FeedbackError, match="project legal asks no pair; it asks: rating"):
        store.ask([pair("fine"), pair("x", project="legal")])
    with pytest.raises(NotFound, match="no project 'tax'"):
        store.ask([pair("x", project="tax")])
    assert store.tasks() == []


def test_changes_of_a_project_are_all_made_or_none(store):
    with pytest.raises(NotFound):
        projects.change(store, Project("legal", overlap=5), add=["nobody"])
    with pytest.raises(NotFound, match="eve is no member of project default"):
        projects.change(store, Project("default", overlap=5), add=["bob"], remove=["eve"])
    with pytest.raises(FeedbackError, match="leave out --new"):
        projects.change(store, Project("legal"), new=True)
    assert {store.project(name).overlap for name in ("default", "legal")} == {3}


def test_deleting_a_person_takes_them_out_of_every_project(store):
    tasks = store.ask([pair("x"), pair("x", project="legal")])
    for task in tasks:
        answer(store, task, "ann")
    forget(store, "root", "ann", "remove")
    with store.database.read() as connection:
        assert "ann" not in projects.members(connection, "default") + projects.members(connection, "legal")
    store.verify()
    assert store.state().judgements() == []


def test_verify_finds_an_index_of_another_project(tmp_path):
    place = tmp_path / "f.db"
    with Store.open(place, PLAIN, HandClock()) as store:
        store.ask([pair()])
        with sqlite3.connect(place) as raw:
            raw.execute("UPDATE progress SET project = 'legal'")
        with pytest.raises(FeedbackError, match="disagree"):
            store.verify()


def test_an_older_store_is_one_with_the_project_default_and_loses_nothing(tmp_path):
    place = tmp_path / "old.db"
    with Store.open(place, PLAIN, HandClock()) as store:
        for name in ("ann", "bob"):
            store.enrol(Annotator(name))
        store.enrol(Annotator("root", role="admin"))
        tasks = store.ask([pair("a"), pair("b")])
        answer(store, tasks[0], "ann")
        store.exclude("root", "k", "bob", "why", until=1.0)
        log, rows = store.events(), preference_pairs(snapshot(store))
    without_projects(place)
    with Store.open(place, PLAIN, HandClock()) as store:
        store.verify()
        assert [vars(event) | {"project": ""} for event in store.events()] == [vars(event) | {"project": ""} for event in log]
        assert preference_pairs(snapshot(store)) == rows
        assert store.project().name == "default"
        with store.database.read() as connection:
            assert projects.members(connection, "default") == ["ann", "bob", "root"]
        assert store.next_task("ann").task == tasks[1]


def test_a_store_of_the_version_before_on_postgresql_is_brought_up_to_date(empty_postgresql):
    with Store.open(empty_postgresql, PLAIN, HandClock()) as store:
        store.enrol(Annotator("ann"))
        [task] = store.ask([pair("a")])
        with store.database.write() as connection:
            for line in (
                "DROP TABLE members", "DROP TABLE projects", "DROP INDEX progress_queue", "DROP INDEX answers_of_annotator",
                *(f"ALTER TABLE {table} DROP COLUMN project" for table in ("tasks", "exclusions", "answers", "progress")),
                "CREATE INDEX progress_queue ON progress (purpose, open, urgency, number)",
                "CREATE INDEX answers_of_annotator ON answers (annotator, event)",
                "UPDATE alembic_version SET version_num = 'm0007'",
            ):  # fmt: skip
                connection.execute(sa.text(line))
    with Store.open(empty_postgresql, PLAIN, HandClock()) as store:
        assert store.next_task("ann").task == task
        with store.database.read() as connection:
            made = {index["name"]: index["column_names"] for index in sa.inspect(connection).get_indexes("progress")}
        assert made["progress_queue"] == [column.name for column in next(
            index for index in schema.progress.indexes if index.name == "progress_queue").columns]  # fmt: skip
        store.verify()
