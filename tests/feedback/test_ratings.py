"""Ratings of single responses: gold, agreement and concerns, as votes have them."""

import numpy as np
import pytest
from feedback_examples import HandClock

from penstock.feedback.exchange.snapshot import Labels, duels_of, labelled_completions, snapshot
from penstock.feedback.quality.agreement import krippendorff_alpha
from penstock.feedback.quality.reliability import assess
from penstock.feedback.records import JUDGEMENT, Annotator, Item, Response, Submission, Task
from penstock.feedback.service.overview import overview
from penstock.feedback.store import Store


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "f.db", now=HandClock()) as opened:
        yield opened


def rated(store, table, **fields):
    """Everybody's ratings (rows) of some responses (columns); NaN for none."""
    count = len(next(iter(table.values())))
    tasks = [Task(item=Item(f"p{n}", (Response(f"r{n}"),)), form="rating", overlap=9, **fields) for n in range(count)]
    store.ask(tasks)
    for name, values in table.items():
        store.enrol(Annotator(name, nature="imported"))
        store.record([
            Submission("rating", task.id, name, f"{name}/{task.id}", {"scores": {"overall": [value]}})
            for task, value in zip(tasks, values, strict=True) if not np.isnan(value)
        ])  # fmt: skip
    return tasks


def concerns(store):
    taken = snapshot(store)
    return {one.annotator: one.concerns for one in assess([], taken.gold(), taken.rated())}


def test_agreement_on_ratings_is_krippendorffs_alpha_by_distance(store):
    values = {"a": [1, 2, 3, 4, np.nan], "b": [1, 3, 3, 4, 5], "c": [2, 2, 3, np.nan, 5]}
    rated(store, values)
    expected = krippendorff_alpha([values[name] for name in "abc"], "interval")
    shown = next(one for one in overview(store)["agreement"] if one["axis"] == "overall (ratings)")
    assert (shown["alpha"], shown["units"]) == (pytest.approx(expected, abs=1e-6), 5)


def test_each_form_has_an_agreement_of_its_own(store):
    """The same two responses ranked with one mind and rated with another: neither changes the number of the other."""
    items = [Item(f"p{n}", (Response("a"), Response("b"))) for n in range(4)]
    for name, turn in (("one", 1), ("other", -1)):
        store.enrol(Annotator(name, nature="imported"))
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


def test_a_rating_one_step_from_the_known_one_is_right(store):
    task = Task(item=Item("p", (Response("r"),)), form="rating", overlap=0, purpose="gold", gold={"scores": {"overall": [5]}})
    store.ask([task])
    for name, value in (("near", 4), ("far", 3)):
        store.enrol(Annotator(name, nature="imported"))
        store.record([Submission("rating", task.id, name, name, {"scores": {"overall": [value]}})])
    taken = snapshot(store)
    shares = {one.annotator: one.gold for one in assess([], taken.gold(), taken.rated())}
    assert {name: (share.right, share.of) for name, share in shares.items()} == {"near": (1, 1), "far": (0, 1)}


def fail_known_ratings(store, liar, honest):
    """Both rate four responses whose rating is known to be 7."""
    known = [
        Task(item=Item(f"g{n}", (Response("r"),)), form="rating", overlap=0, purpose="gold", gold={"scores": {"overall": [7]}})
        for n in range(4)
    ]
    store.ask(known)
    for name, value in ((liar, 1), (honest, 7)):
        store.record([Submission("rating", one.id, name, f"{name}{one.id}", {"scores": {"overall": [value]}}) for one in known])


def test_whoever_fails_known_ratings_decides_no_completion(store):
    rated(store, {"liar": [7], "honest": [2]})
    fail_known_ratings(store, "liar", "honest")
    [row] = labelled_completions(snapshot(store))
    assert row["label"] is False
    assert concerns(store) == {"honest": (), "liar": ("gold",)}


def test_whoever_fails_known_ratings_decides_no_duel_between_models(store):
    rated(store, {"liar": [7], "honest": [2]})
    fail_known_ratings(store, "liar", "honest")
    item = Item("p", (Response("a", source="one"), Response("b", source="other")))
    [task] = store.ask([Task(item=item)])
    for name, side in (("liar", 1), ("honest", -1)):
        store.record([Submission("vote", task, name, f"{name}/duel", {"preference": side})])
    [duel] = duels_of(snapshot(store), Labels())
    assert (duel.first if duel.score == 1 else duel.second) == "other"


def test_one_and_the_same_rating_and_the_opposite_of_the_others_are_concerns(store):
    truth = [1 + n % 7 for n in range(28)]
    rated(store, {"a": truth, "b": truth, "c": truth, "same": [4] * 28, "opposite": [8 - value for value in truth]})
    assert concerns(store) == {"a": (), "b": (), "c": (), "same": ("one rating",), "opposite": ("against the others",)}


def test_ratings_by_axis_are_measured_on_each(store):
    truth = [1 + n % 7 for n in range(24)]
    axes = ("helpful", "harmless")
    tasks = [Task(item=Item(f"p{n}", (Response("r"),)), form="rating", overlap=9, axes=axes) for n in range(24)]
    store.ask(tasks)
    for name in ("a", "b", "c"):
        store.enrol(Annotator(name, nature="imported"))
        scores = [{"helpful": [value], "harmless": [8 - value if name == "c" else value]} for value in truth]
        said = zip(tasks, scores, strict=True)
        store.record([Submission("rating", one.id, name, f"{name}{one.id}", {"scores": given}) for one, given in said])
    found = overview(store)
    alpha = {one["axis"]: one["alpha"] for one in found["agreement"] if one["axis"].endswith("(ratings)")}
    assert alpha["helpful (ratings)"] == 1.0
    assert alpha["harmless (ratings)"] < 0.2
    assert [one["concerns"] for one in found["annotators"]] == [[], [], []]  # c contradicts on one of two axes alone


def test_everybody_giving_the_same_rating_is_no_concern(store):
    rated(store, {"a": [7] * 25, "b": [7] * 25})
    assert concerns(store) == {"a": (), "b": ()}


def test_few_ratings_are_no_concern(store):
    rated(store, {"a": [1, 7, 1, 7], "b": [7, 1, 7, 1], "c": [4, 4, 4, 4]})
    assert set(concerns(store).values()) == {()}
