"""Several projects in one store: whose tasks, votes, gold and numbers are whose; and older stores."""

import pytest
import sqlalchemy as sa
from feedback_examples import (
    BEFORE_PROJECTS,
    PLAIN,
    answer,
    answers,
    enrol,
    gold,
    pair,
    rows_of,
    vote,
    without_projects,
)

from penstock.feedback import projects, schema
from penstock.feedback.deletion import forget
from penstock.feedback.errors import FeedbackError, NotAllowed, NotFound
from penstock.feedback.exchange.questions import ask
from penstock.feedback.exchange.snapshot import Labels, content_hash, snapshot
from penstock.feedback.policy import QueuePolicy
from penstock.feedback.projects import Project
from penstock.feedback.records import Annotator, Submission
from penstock.feedback.store import Store


@pytest.fixture
def store(either):
    """ann in both projects, bob in the first, eve in the second."""
    projects.change(either, Project("legal"), new=True)
    for name, project in (("ann", "default"), ("bob", "default"), ("ann", "legal"), ("eve", "legal")):
        either.enrol(Annotator(name), project)
    enrol(either, "root", role="admin")
    return either


@pytest.fixture
def twins(store):
    """The same question in either project."""
    return store.ask([pair("x"), pair("x", project="legal")])


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


def test_the_same_question_is_another_task_in_another_project_and_votes_do_not_mix(store, twins):
    one, other = twins
    assert one != other
    answer(store, one, "ann", 1)
    answer(store, other, "ann", -1)
    for project, chosen in (("default", "first x"), ("legal", "second x")):
        [row] = rows_of(store, Labels(), project=project)
        assert (row["chosen"], row["votes"]) == (chosen, 1)
    assert store.counts()["ask"].judgements == store.counts("legal")["ask"].judgements == 1
    assert ask(store, [pair("x", project="legal"), pair("y", project="legal")]) == 1


def test_a_question_for_somebody_who_is_no_member_is_refused(store):
    with pytest.raises(FeedbackError, match="bob: no member of project legal"):
        ask(store, [pair("x", reserved="ann,bob", project="legal")])
    assert ask(store, [pair("x", reserved="ann,eve", project="legal")]) == 1


def test_what_a_run_has_read_of_one_project_keeps_its_hash_while_another_one_grows(store, twins):
    answer(store, twins[0], "ann")
    before = content_hash(rows_of(store))
    answer(store, twins[1], "eve")
    assert content_hash(rows_of(store)) == before


def test_an_exclusion_counts_in_its_project_alone_or_in_all(store, twins):
    answers(store, twins, "ann")
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
    known = gold(project="legal")
    store.ask([known, pair("a"), pair("b", project="legal"), pair("c", project="legal")])
    assert store.next_task("ann", project="legal").task == known.id
    store.submit(vote(known.id, "ann", "wrong", -1))
    assert store.next_task("ann", project="legal") is None  # excluded there by the store itself
    assert store.next_task("ann") is not None
    assert store.next_task("eve", project="legal").task == known.id
    store.submit(vote(known.id, "eve", "right", 1))
    second = store.next_task("eve", project="legal")
    store.submit(vote(second.task, "eve", "two"))
    assert store.next_task("eve", project="legal") is None  # two are the quota


def test_repeats_are_of_the_same_project(store):
    store.policy = QueuePolicy(gold_share=0, repeat_share=0.5, repeat_after=1)
    answers(store, store.ask([pair("a")]), "ann")
    store.ask([pair(f"b{number}", project="legal") for number in range(10)])
    seen = []
    while lease := store.next_task("ann", project="legal"):
        seen.append(store.task(lease.task))
        store.submit(vote(lease.task, "ann", f"k{len(seen)}"))
    assert {task.project for task in seen} == {"legal"}
    assert any(task.purpose == "repeat" for task in seen)


def test_the_only_project_needs_no_name_and_several_do(either):
    assert either.project().name == "default"
    projects.change(either, Project("legal"), new=True)
    assert either.project().name == "legal"  # nothing was ever asked in the first one
    either.ask([pair()])
    with pytest.raises(FeedbackError, match="which project\\? there are: default, legal"):
        either.project()
    with pytest.raises(NotFound, match="no project 'legla'; there are: default, legal"):
        either.project("legla")


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


def test_deleting_a_person_takes_them_out_of_every_project(store, twins):
    answers(store, twins, "ann")
    forget(store, "root", "ann", "remove")
    with store.database.read() as connection:
        assert "ann" not in projects.members(connection, "default") + projects.members(connection, "legal")
    store.verify()
    assert store.state().judgements() == []


def test_an_older_store_is_one_with_the_project_default_and_loses_nothing(file, clock):
    with Store.open(file, PLAIN, clock) as store:
        enrol(store, "ann", "bob")
        enrol(store, "root", role="admin")
        tasks = store.ask([pair("a"), pair("b")])
        answer(store, tasks[0], "ann")
        store.exclude("root", "k", "bob", "why", until=1.0)
        log, rows = store.events(), rows_of(store)
    without_projects(file)
    with Store.open(file, PLAIN, clock) as store:
        store.verify()
        assert [vars(event) | {"project": ""} for event in store.events()] == [vars(event) | {"project": ""} for event in log]
        assert rows_of(store) == rows
        assert store.project().name == "default"
        with store.database.read() as connection:
            assert projects.members(connection, "default") == ["ann", "bob", "root"]
        assert store.next_task("ann").task == tasks[1]


def test_a_store_of_the_version_before_on_postgresql_is_brought_up_to_date(store_on_postgresql, clock):
    with Store.open(store_on_postgresql, PLAIN, clock) as store:
        enrol(store, "ann")
        [task] = store.ask([pair("a")])
        with store.database.write() as connection:
            for line in BEFORE_PROJECTS:
                connection.execute(sa.text(line))
    with Store.open(store_on_postgresql, PLAIN, clock) as store:
        assert store.next_task("ann").task == task
        with store.database.read() as connection:
            made = {index["name"]: index["column_names"] for index in sa.inspect(connection).get_indexes("progress")}
        [wanted] = [index for index in schema.progress.indexes if index.name == "progress_queue"]
        assert made["progress_queue"] == [column.name for column in wanted.columns]
        store.verify()
