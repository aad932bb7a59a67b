"""Ratings of single responses: gold, agreement and concerns, as votes have them."""

import numpy as np
import pytest
from feedback_examples import enrol, vote

from penstock.feedback.exchange.snapshot import Labels, duels_of, labelled_completions, snapshot
from penstock.feedback.quality.agreement import krippendorff_alpha
from penstock.feedback.quality.reliability import assess
from penstock.feedback.records import JUDGEMENT, Item, Response, Submission, Task
from penstock.feedback.service.overview import overview


def to_rate(count, **fields):
    """Questions for ratings of one response each."""
    made = {"form": "rating", "overlap": 9, **fields}
    return [Task(item=Item(f"{made.get('purpose', 'ask')} {n}", (Response(f"r{n}"),)), **made) for n in range(count)]


def rated(store, tasks, table):
    """Everybody's ratings (rows) of some responses (columns), or their scores by axis; NaN for none."""
    names = store.ask(tasks)
    for annotator, values in table.items():
        enrol(store, annotator, nature="imported")
        store.record([
            Submission("rating", name, annotator, f"{annotator}/{name}", {"scores": scores_of(value)})
            for name, value in zip(names, values, strict=True) if value == value
        ])  # fmt: skip


def scores_of(value):
    return {axis: [score] for axis, score in (value if isinstance(value, dict) else {"overall": value}).items()}


def concerns(store):
    taken = snapshot(store)
    return {one.annotator: one.concerns for one in assess([], taken.gold(), taken.rated())}


def test_agreement_on_ratings_is_krippendorffs_alpha_by_distance(store):
    values = {"a": [1, 2, 3, 4, np.nan], "b": [1, 3, 3, 4, 5], "c": [2, 2, 3, np.nan, 5]}
    rated(store, to_rate(5), values)
    expected = krippendorff_alpha([values[name] for name in "abc"], "interval")
    shown = next(one for one in overview(store)["agreement"] if one["axis"] == "overall (ratings)")
    assert (shown["alpha"], shown["units"]) == (pytest.approx(expected, abs=1e-6), 5)


def test_each_form_has_an_agreement_of_its_own(store):
    """The same two responses ranked with one mind and rated with another: neither changes the number of the other."""
    items = [Item(f"p{n}", (Response("a"), Response("b"))) for n in range(4)]
    enrol(store, "one", "other", nature="imported")
    for name, turn in (("one", 1), ("other", -1)):
        for n, item in enumerate(items):
            up = n % 2 == 0
            said = {
                "pair": {"preference": 1 if up else -1},
                "ranking": {"ranks": [1, 2] if up else [2, 1]},
                "rating": {"scores": {"overall": [4 + turn * (2 if up else -2), 4]}},
            }
            for form, body in said.items():
                [task] = store.ask([Task(item=item, form=form, overlap=9)])
                store.record([Submission(JUDGEMENT[form], task, name, f"{name}/{task}", body)])
    found = {one["axis"]: (one["alpha"], one["units"]) for one in overview(store)["agreement"]}
    assert found["overall"] == found["overall (rankings)"] == (1.0, 4)
    ratings = np.array([[6, 4, 2, 4, 6, 4, 2, 4], [2, 4, 6, 4, 2, 4, 6, 4]], float)
    assert found["overall (ratings)"] == (pytest.approx(krippendorff_alpha(ratings, "interval"), abs=1e-6), 8)


def known(count, score):
    """Responses whose rating is known."""
    return to_rate(count, overlap=0, purpose="gold", gold={"scores": {"overall": [score]}})


def test_a_rating_one_step_from_the_known_one_is_right(store):
    rated(store, known(1, 5), {"near": [4], "far": [3]})
    taken = snapshot(store)
    shares = {one.annotator: one.gold for one in assess([], taken.gold(), taken.rated())}
    assert {name: (share.right, share.of) for name, share in shares.items()} == {"near": (1, 1), "far": (0, 1)}


def test_whoever_fails_known_ratings_decides_no_completion_and_no_duel_between_models(store):
    rated(store, to_rate(1), {"liar": [7], "honest": [2]})
    rated(store, known(4, 7), {"liar": [1] * 4, "honest": [7] * 4})
    [row] = labelled_completions(snapshot(store))
    assert row["label"] is False
    assert concerns(store) == {"honest": (), "liar": ("gold",)}
    [task] = store.ask([Task(item=Item("p", (Response("a", source="one"), Response("b", source="other"))))])
    for name, side in (("liar", 1), ("honest", -1)):
        store.record([vote(task, name, f"{name}/duel", side)])
    [duel] = duels_of(snapshot(store), Labels())
    assert (duel.first if duel.score == 1 else duel.second) == "other"


def test_one_and_the_same_rating_and_the_opposite_of_the_others_are_concerns(store):
    truth = [1 + n % 7 for n in range(28)]
    opposite = [8 - value for value in truth]
    rated(store, to_rate(28), {"a": truth, "b": truth, "c": truth, "same": [4] * 28, "opposite": opposite})
    assert concerns(store) == {"a": (), "b": (), "c": (), "same": ("one rating",), "opposite": ("against the others",)}


def test_ratings_by_axis_are_measured_on_each(store):
    truth = [1 + n % 7 for n in range(24)]
    both = [{"helpful": value, "harmless": value} for value in truth]
    opposite = [{"helpful": value, "harmless": 8 - value} for value in truth]
    rated(store, to_rate(24, axes=("helpful", "harmless")), {"a": both, "b": both, "c": opposite})
    found = overview(store)
    alpha = {one["axis"]: one["alpha"] for one in found["agreement"] if one["axis"].endswith("(ratings)")}
    assert alpha["helpful (ratings)"] == 1.0
    assert alpha["harmless (ratings)"] < 0.2
    assert [one["concerns"] for one in found["annotators"]] == [[], [], []]  # c contradicts on one of two axes alone


@pytest.mark.parametrize(
    "table",
    [{"a": [7] * 25, "b": [7] * 25}, {"a": [1, 7, 1, 7], "b": [7, 1, 7, 1], "c": [4, 4, 4, 4]}],
    ids=["everybody gives the same", "few ratings"],
)
def test_without_enough_to_compare_there_is_no_concern(store, table):
    rated(store, to_rate(len(table["a"])), table)
    assert set(concerns(store).values()) == {()}
