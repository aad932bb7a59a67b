"""The numbers that administrators see, by hand."""

import math

import pytest
from feedback_examples import answer, answers, enrol, gold, pair, say

from penstock.feedback.quality.reliability import Share
from penstock.feedback.records import Event
from penstock.feedback.service.overview import SITTING_SECONDS, overview, share, speeds, votes_a_day


def judged(name, time):
    return Event(1, "k", time, "vote", "t", name, 0, {"preference": 1}, (0, 1), 1.0, "1")


def test_speed_counts_the_time_of_sitting_and_not_the_pauses():
    times = [0, 60, 120, 120 + SITTING_SECONDS + 1, 120 + SITTING_SECONDS + 61]
    assert speeds([judged("ann", time) for time in times]) == {"ann": 60.0}
    assert math.isnan(speeds([judged("bob", 5)])["bob"])


def test_votes_are_counted_by_days_of_utc():
    assert votes_a_day([judged("ann", time) for time in (0, 86399, 86400)]) == [("1970-01-01", 2), ("1970-01-02", 1)]


def test_a_share_has_its_interval_and_one_of_nothing_is_null():
    assert share(Share(0, 0)) is None
    found = share(Share(9, 10))
    assert (found["right"], found["of"], found["value"]) == (9, 10, 0.9)
    assert found["interval"] == pytest.approx([0.596, 0.982], abs=1e-3)  # Wilson's interval of 9 in 10


@pytest.fixture
def judged_store(service):
    """Two people agree on three pairs and differ on one; ann is right on gold, bob is wrong."""
    store = service.store
    enrol(store, "ann", "bob")
    tasks = store.ask([pair(str(number)) for number in range(4)])
    (known,) = store.ask([gold()])
    for number, task in enumerate(tasks):
        answer(store, task, "ann", 1 if number < 2 else -1)
        answer(store, task, "bob", 1 if number in (0, 1, 3) else -1)
    answer(store, known, "ann", 1)
    answer(store, known, "bob", -1)
    return store


def test_the_overview_counts_and_compares(judged_store):
    found = overview(judged_store)
    assert found["events"] == 11  # with the line that says what is gold
    assert {one["purpose"]: (one["tasks"], one["open"], one["judgements"]) for one in found["progress"]} == {
        "ask": (4, 0, 8), "gold": (1, 1, 2),
    }  # fmt: skip
    ann, bob = found["annotators"]
    assert (ann["name"], ann["done"], ann["gold"]["value"], bob["gold"]["value"]) == ("ann", 5, 1.0, 0.0)
    (agreement,) = found["agreement"]
    # Units (1,1), (1,1), (-1,-1), (-1,1): o = 2 of 8 differ; 5 and 3 values: e = 2·5·3 / (8·7); alpha = 1 - (2/8) / (30/56).
    assert agreement["alpha"] == pytest.approx(1 - (2 / 8) / (30 / 56), abs=1e-6)
    assert agreement["units"] == 4
    low, high = agreement["interval"]
    assert low <= agreement["alpha"] <= high


def test_every_axis_has_its_own_agreement(service):
    store = service.store
    enrol(store, "ann", "bob")
    tasks = store.ask([pair(str(number), axes=("overall", "tone")) for number in range(2)])
    for number, task in enumerate(tasks):
        for name in ("ann", "bob"):
            say(store, "vote", task, name, preference=1, axes={"tone": 2 * number - 1})
    found = {one["axis"]: (one["alpha"], one["units"]) for one in overview(store)["agreement"]}
    assert found["tone"] == (1.0, 2)
    assert found["overall"][0] is None  # all the same: chance alone explains it


def test_an_empty_store_has_an_overview(service):
    found = overview(service.store)
    assert (found["events"], found["annotators"], found["days"]) == (0, [], [])


def test_imported_labels_are_neither_progress_nor_pace(judged_store):
    enrol(judged_store, "hh-rlhf", nature="imported")
    answers(judged_store, judged_store.ask([pair(f"imported {number}", overlap=1) for number in range(3)]), "hh-rlhf")
    found = overview(judged_store)
    assert [(one["purpose"], one["tasks"], one["judgements"]) for one in found["progress"]] == [("ask", 4, 8), ("gold", 1, 2)]
    assert found["imported"] == 3
    assert sum(day["votes"] for day in found["days"]) == 10
    (source,) = [one for one in found["annotators"] if one["name"] == "hh-rlhf"]
    assert (source["done"], source["per_hour"]) == (3, None)


def test_simulated_annotators_do_not_change_what_people_are_worth(service):
    """Exports count people alone; so do their accuracies and weights here."""
    store = service.store
    enrol(store, "ann", "bob")
    tasks = store.ask([pair(str(number), overlap=5) for number in range(6)])
    for number, task in enumerate(tasks):
        answer(store, task, "ann", 1)
        answer(store, task, "bob", 1 if number else -1)
    before = {one["name"]: (one["accuracy"], one["weight"]) for one in overview(store)["annotators"]}
    enrol(store, "sim-1", "sim-2", "sim-3", nature="simulated")
    answers(store, tasks, "sim-1", "sim-2", "sim-3", preference=-1)
    found = {one["name"]: (one["accuracy"], one["weight"]) for one in overview(store)["annotators"]}
    assert before.items() <= found.items()
    assert found["sim-1"][0] > 0.5  # among themselves
