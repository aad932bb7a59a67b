"""From a vote to weights and back, on a run's folder written by hand."""

import json

import pytest
from feedback_examples import answer, answers, enrol, pair

from penstock.feedback.asking import Asked, write
from penstock.feedback.errors import FeedbackError
from penstock.feedback.exchange.snapshot import content_hash, preference_pairs, snapshot
from penstock.feedback.lineage import behind, influence, origins, recorded, runs_in, told
from penstock.feedback.records import Item, Response, Task


def stage(name, kind="Offline", source="", model="@sft", **more):
    return {
        "name": name,
        "kind": kind,
        "steps": 10,
        "model": {"path": model},
        "data": {"source": source, "options": {}},
        **more,
    }


@pytest.fixture
def store(store):
    enrol(store, "ann", "ben")
    return store


@pytest.fixture
def voted(store, tmp_path):
    """A run: sft, ask, reward on the first two votes, ppo by the reward, more (from ppo), other (from sft). A third vote is
    late."""
    responses = (Response("x", run="r", stage="sft", version=10), Response("y", source="human"))
    task = Task(item=Item("p", responses))
    late = pair("late")
    store.ask([task, late])
    answers(store, [task.id], "ann", "ben")
    taken = snapshot(store)
    answer(store, late.id, "ann")
    folder = tmp_path / "r"
    write([Asked(task)], folder / "asked" / "ask.jsonl")
    (folder / "asked" / "ask.json").write_text(json.dumps({"until": 2}))
    stages = [
        stage("sft", model=""),
        stage("ask", "Ask"),
        stage("reward", source="feedback:@run"),
        stage("ppo", "Online", rewards=[{"function": "model:@reward"}]),
        stage("more", model="@ppo"),
        stage("other"),
    ]
    (folder / "run.json").write_text(json.dumps({"name": "r", "stages": stages}))
    pin = {"until": 2, "content": content_hash(preference_pairs(taken))}
    (folder / "pins.json").write_text(json.dumps({"reward.data": pin}))
    return folder


def test_a_vote_is_followed_to_all_weights_that_it_has_touched(store, voted):
    run = recorded(voted)
    found = influence(1, run, snapshot(store))
    assert [(stage, run.steps[stage], how) for stage, how in found.items()] == [
        ("ask", 0, "asked for it"),
        ("reward", 10, "learns from it"),
        ("ppo", 10, "is rewarded by reward"),
        ("more", 10, "starts from ppo"),
    ]


def test_a_vote_that_came_later_has_touched_nothing(store, voted):
    assert influence(3, recorded(voted), snapshot(store)) == {}
    assert told(3, "", [recorded(voted)], snapshot(store))[-1] == "  no weights of these runs"


def test_a_vote_that_was_taken_back_in_time_has_touched_only_who_asked(store, voted, tmp_path):
    store.undo("ben", "oops")
    taken = snapshot(store)
    pins = {"reward.data": {"until": taken.until, "content": content_hash(preference_pairs(taken))}}
    (voted / "pins.json").write_text(json.dumps(pins))
    # ben's newest event is his vote on the first task; ann's stands
    assert "reward" not in influence(2, recorded(voted), taken)
    assert "reward" in influence(1, recorded(voted), taken)


def test_weights_are_followed_to_the_votes_behind_them(store, voted):
    run, taken = recorded(voted), snapshot(store)
    assert behind("more", run, taken) == {"reward": [1, 2]}
    assert behind("other", run, taken) == {}
    assert told(0, "more", [run], taken) == ["r/more:", "  reward learned from 2 events (1 to 2) by ann, ben"]


def test_a_vote_tells_whose_responses_it_compares(store, voted):
    assert origins(1, snapshot(store)) == ["r/sft version 10", "human"]


def test_another_store_in_the_same_place_is_not_believed(store, voted):
    (voted / "pins.json").write_text(json.dumps({"reward.data": {"until": 2, "content": "0" * 64}}))
    assert list(influence(1, recorded(voted), snapshot(store))) == ["ask"]


def test_what_is_not_there_is_named(store, voted, tmp_path):
    run, taken = recorded(voted), snapshot(store)
    with pytest.raises(FeedbackError, match="no event 9; the log has 3"):
        influence(9, run, taken)
    with pytest.raises(FeedbackError, match="has no stage 'rewards'"):
        behind("rewards", run, taken)
    with pytest.raises(FeedbackError, match="not the folder of a run"):
        recorded(tmp_path)
    with pytest.raises(FeedbackError, match="no run in it"):
        runs_in(voted / "asked")


@pytest.mark.parametrize("field", ['"steps": 1, "model": "m"', '"steps": 1e999', '"steps": 1, "rewards": [{"function": 5}]'])
def test_a_damaged_run_is_named(tmp_path, field):
    stage = f'{{"name": "x", "kind": "Offline", {field}, "data": {{"source": "", "options": {{}}}}}}'
    for run in ("[" * 200_000, f'{{"name": "a", "stages": [{stage}]}}'):
        (tmp_path / "run.json").write_text(run)
        with pytest.raises(FeedbackError, match="not the folder of a run"):
            recorded(tmp_path)


def test_a_folder_of_runs_is_searched(voted, tmp_path):
    assert runs_in(tmp_path) == [voted]
    assert runs_in(voted) == [voted]
