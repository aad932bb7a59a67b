"""Gold decides who is believed: a majority that errs together is not, and what is asked twice counts once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from feedback_examples import SIMULATED, answer, enrol, rows_of, vote

from penstock.feedback.errors import FeedbackError
from penstock.feedback.exchange.formats import as_vote
from penstock.feedback.exchange.imports import ask_people, load
from penstock.feedback.exchange.snapshot import (
    Labels,
    annotator_weights,
    counted,
    labelled_completions,
    preference_pairs,
    snapshot,
)
from penstock.feedback.judgements import unit_of
from penstock.feedback.quality.dawid_skene import dawid_skene
from penstock.feedback.records import Item, Response, Submission, Task
from penstock.feedback.store import Store

SAME = Labels(weights="equal", natures=("simulated",))


def question(number: int, **fields) -> Task:
    """A pair whose first text is the better one; which comes first in the item alternates."""
    texts = (f"right {number}", f"wrong {number}")
    item = Item(f"prompt {number}", tuple(map(Response, texts if number % 2 else texts[::-1])))
    return Task(item=item, overlap=5, **fields)


def known(task: Task, **fields) -> Task:
    """The same with its known answer."""
    return replace(task, **{"overlap": 0, "purpose": "gold", "gold": {"preference": better(task)}, **fields})


def better(task: Task) -> int:
    return 1 if task.item.texts[0].startswith("right") else -1


def vote_of(task: Task, annotator: str, right: bool) -> Submission:
    sign = better(task) if right else -better(task)
    return vote(task.id, annotator, f"{annotator}:{task.id}", 2 * sign)


def colluded(store: Store, pairs: int, gold: int, honest: float = 0.9, seed: int = 0) -> None:
    """Two honest annotators and three who always agree on the wrong answer; all judge everything, gold included."""
    draws = np.random.default_rng(seed)
    enrol(store, "honest-1", "honest-2", "liar-1", "liar-2", "liar-3", nature="simulated")
    tasks = [question(number) if number < pairs else known(question(number)) for number in range(pairs + gold)]
    store.ask(tasks)
    for annotator in store.annotators():
        rights = draws.random(len(tasks)) < (honest if annotator.name.startswith("honest") else 0.05)
        store.record([vote_of(task, annotator.name, bool(right)) for task, right in zip(tasks, rights, strict=True)])


def worth_of(store: Store, labels: Labels = SIMULATED) -> dict[str, float]:
    taken = snapshot(store)
    return annotator_weights(counted(taken, labels), taken.gold(), labels)


@pytest.mark.parametrize("honest", [0.85, 0.9, 0.97])
@pytest.mark.parametrize("seed", range(3))
def test_a_majority_that_colludes_fails_gold_and_weighs_nothing(store, seed, honest):
    colluded(store, 200, 20, honest, seed)
    worth = worth_of(store)
    assert all(worth[f"liar-{n}"] == 0 for n in (1, 2, 3))
    right = [row["chosen"].startswith("right") for row in rows_of(store, SIMULATED)]
    assert len(right) > 120
    assert np.mean(right) >= 0.95
    assert all(worth[f"honest-{n}"] > 0.5 for n in (1, 2))


def test_equal_weights_are_equal_but_for_who_fails_gold(store):
    colluded(store, 20, 20)
    worth = worth_of(store, SAME)
    assert len({worth[name] for name in worth if name.startswith("honest")}) == 1
    assert {worth[name] for name in worth if name.startswith("liar")} == {0.0}


def test_without_gold_the_majority_is_believed(store):
    """Which is why a report card says that nothing tells it from collusion."""
    colluded(store, 200, 0)
    worth = worth_of(store)
    assert worth["liar-1"] > worth["honest-1"]


def test_known_units_stay_as_they_are_and_decide_where_the_estimate_starts():
    # Three say 1 of everything, two say 0; of unit 0 it is known that 0 is true. Nobody is silent.
    said_AU = [[1] * 12] * 3 + [[0] * 12] * 2
    found = dawid_skene(said_AU, 2, known_U=[0, 0, 0] + [-1] * 9)
    assert found.posterior_UK[:3, 0].tolist() == [1, 1, 1]
    assert (found.posterior_UK[:, 0] > 0.99).all()
    assert (dawid_skene(said_AU, 2).posterior_UK[:, 0] < 0.01).all()


def test_who_is_silent_is_measured_and_decides_nothing():
    found = dawid_skene([[0, 0, 0], [1, 1, 1], [1, 1, 1]], 2, silent_A=[False, True, True])
    assert (found.posterior_UK[:, 0] > 0.9).all()
    assert found.accuracy_A[1] < 0.5


def test_a_label_that_is_known_must_be_one():
    with pytest.raises(FeedbackError, match="from 0 to 1"):
        dawid_skene([[0, 1]], 2, known_U=[2, -1])
    with pytest.raises(FeedbackError, match="integers"):
        dawid_skene([[0, 1]], 2, known_U=[0])


def test_what_is_gold_is_exported_as_gold_says(store):
    enrol(store, "a", "b", nature="simulated")
    task, gold = question(1), known(question(1))
    store.ask([task, gold])
    store.record([vote_of(task, "a", False), vote_of(task, "b", False), vote_of(gold, "a", True)])
    [row] = rows_of(store, SIMULATED)
    assert (row["chosen"], row["probability"], row["agreement"]) == ("right 1", 0.99, 0.0)


def test_an_imported_pair_that_people_are_asked_too_is_one_row(store):
    imported = [as_vote(f"p{n % 8}", f"good {n % 8}", f"bad {n % 8}", "theirs", f"row/{n}") for n in range(12)]
    load(store, imported)
    assert ask_people(store, imported, overlap=1) == 8  # the same question is put to people once
    enrol(store, "ann")
    while (lease := store.next_task("ann")) is not None:
        side = 1 if store.task(lease.task).item.texts[0].startswith("bad") else -1  # against what was imported
        answer(store, lease.task, "ann", side)
    taken = snapshot(store)
    sides = [frozenset((row["prompt"], row["chosen"], row["rejected"])) for row in preference_pairs(taken)]
    assert len(sides) == len(set(sides))
    named = [(row["prompt"], row["completion"]) for row in labelled_completions(taken)]
    assert len(named) == len(set(named))
    unit = unit_of(imported[0][0].item)[0]
    assert {one.annotator for one in counted(taken, Labels()) if one.unit == unit} == {"theirs", "ann"}


def test_an_annotator_counts_once_however_often_the_same_is_asked(store):
    enrol(store, "a", "b", nature="simulated")
    task, again = question(1), question(1, round="later")
    store.ask([task, again])
    store.record([vote_of(task, "a", True), vote_of(again, "a", True), vote_of(task, "b", False)])
    assert rows_of(store, SAME) == []


def test_strength_is_exported(store):
    enrol(store, "a", "b", "c", nature="simulated")
    task = question(1)
    store.ask([task])
    store.record([vote(task.id, name, name, better(task) * value) for name, value in {"a": 3, "b": 1, "c": -2}.items()])
    [row] = rows_of(store, SAME)
    assert row["strength"] == 2.0


def test_an_even_split_is_left_to_an_adjudicator(store):
    enrol(store, "a", "b", nature="simulated")
    enrol(store, "judge", nature="simulated", role="adjudicator")
    tasks = [question(number) for number in range(20)]
    settled = replace(tasks[0], overlap=1, purpose="adjudication", origin=tasks[0].id)
    store.ask([*tasks, settled])
    store.record([vote_of(task, "a", True) for task in tasks])
    store.record([vote_of(task, "b", index > 3) for index, task in enumerate(tasks)])
    assert len(rows_of(store, SIMULATED)) == 16
    store.record([vote_of(settled, "judge", True)])
    assert [row["chosen"] for row in rows_of(store, SIMULATED) if row["prompt"] == "prompt 0"] == ["right 0"]


def test_a_part_of_a_log_knows_no_gold_of_later(store):
    """What a run has read is read again with the same hash, however long the log has become."""
    enrol(store, "a", nature="simulated")
    task = question(1)
    gold = known(task, gold={"preference": -better(task)})
    store.ask([task])
    store.record([vote_of(task, "a", True)])
    until, rows = store.length(), rows_of(store, SIMULATED)
    store.ask([gold])
    store.record([vote_of(gold, "a", True)])
    assert rows_of(store, SIMULATED) != rows
    assert preference_pairs(snapshot(store).part(until), SIMULATED) == rows
    assert rows_of(store, SIMULATED, until) == rows


def test_gold_of_one_axis_judges_nobody_on_another(store):
    enrol(store, "a", nature="simulated")
    gold = known(question(1), gold={"preference": 2}, axes=("overall", "tone"))
    store.ask([gold])
    store.record([vote(gold.id, "a", "k", 2, axes={"tone": -1})])
    taken = snapshot(store)
    assert len(taken.gold()) == 1
    assert taken.gold("tone") == {}
