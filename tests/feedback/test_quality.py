"""Judgements read from events, detectors by hand values, and the queue of what needs a third opinion."""

import math
from dataclasses import replace

import pytest
from feedback_examples import gold, pair

from penstock.feedback.judgements import Comparison, Unit, comparisons, gold_units, ratings, sign_table, unit_of
from penstock.feedback.quality.reliability import (
    Share,
    assess,
    binomial_chance,
    gold_accuracy,
    hasty_share,
    left_share,
    preference_probability,
    preference_share,
    self_consistency,
    to_adjudicate,
)
from penstock.feedback.records import Event, Item, Response, Task


def event(task, annotator="ann", sequence=1, kind="vote", order=(0, 1), **body):
    return Event(sequence, f"k{sequence}", 0.0, kind, task, annotator, 0, body, order, 4.0, "1")


def compared(task, *, axis="overall", kind="vote", order=(0, 1), **body):
    """What one answer to a task compares."""
    return comparisons([event(task.id, kind=kind, order=order, **body)], {task.id: task}, axis)


def said(unit, annotator, preference, sequence=1, **fields):
    """A comparison; its 24 characters were looked at for 30 seconds."""
    purpose, side, latency = fields.get("purpose", "ask"), fields.get("side", 1), fields.get("latency", 30.0)
    task = pair(unit, purpose=purpose, overlap=1, reserved=annotator if purpose == "repeat" else "")
    given = replace(event(task.id, annotator, sequence), latency=latency)
    return Comparison(given, task, unit_named(unit), (0, 1), preference, side)


def unit_named(name):
    return Unit(name, "first", "second")


def test_a_vote_is_one_comparison_with_its_side():
    task = pair()
    [shown_left], [shown_right] = (compared(task, order=order, preference=-2) for order in ((0, 1), (1, 0)))
    unit, turn = unit_of(task.item)
    assert (shown_left.unit, turn * shown_left.sign) == (unit, -1)
    assert (turn * shown_left.side, turn * shown_right.side) == (1, -1)
    assert shown_left.characters == len("prompt x" + "first x" + "second x")


def test_a_ranking_of_three_is_three_comparisons():
    item = Item("p", (Response("a"), Response("b"), Response("c")))
    found = compared(Task(item=item, form="ranking"), kind="ranking", order=(2, 0, 1), ranks=[2, 1, 2])
    turns = [1 if c.responses == tuple(sorted(c.responses)) else -1 for c in found]
    assert [tuple(sorted(c.responses)) for c in found] == [(0, 1), (0, 2), (1, 2)]
    assert [turn * c.preference for turn, c in zip(turns, found, strict=True)] == [-1, 0, 1]
    assert [turn * c.side for turn, c in zip(turns, found, strict=True)] == [1, -1, -1]


def test_ratings_compare_by_their_difference_on_the_scale():
    task = pair(form="rating", axes=("overall", "tone"))
    given = event(task.id, kind="rating", scores={"overall": [7, 1], "tone": [3, 4]})
    [whole] = comparisons([given], {task.id: task})
    [tone] = comparisons([given], {task.id: task}, "tone")
    turn = unit_of(task.item)[1]
    assert (turn * whole.preference, turn * tone.preference) == (3.0, -0.5)
    assert [(r.response, r.value) for r in ratings([given], {task.id: task}, "tone")] == [(0, 3.0), (1, 4.0)]


@pytest.mark.parametrize(
    ("task", "axis"),
    [
        (pair(axes=("overall", "tone")), "tone"),
        (Task(item=Item("p", (Response("a"), Response("a", run="other")))), "overall"),
    ],
    ids=["an axis that was not judged", "a text beside itself"],
)
def test_what_compares_nothing_says_nothing(task, axis):
    assert compared(task, axis=axis, preference=2, both_bad=False, axes={}) == []


def test_a_repeat_has_the_unit_of_its_origin():
    task = pair()
    repeat = pair(purpose="repeat", origin=task.id, reserved="ann", overlap=1)
    [found] = compared(repeat, preference=1)
    assert found.unit == unit_of(task.item)[0]


def test_the_other_order_and_another_run_are_the_same_unit():
    one, other = Response("a", run="yesterday"), Response("b")
    forth, back = Item("p", (one, other), "key"), Item("p", (other, Response("a")), groups={"language": "en"})
    assert forth.id != back.id
    assert unit_of(forth)[0] == unit_of(back)[0]
    assert unit_of(forth)[1] == -unit_of(back)[1]


def test_gold_is_read_like_a_judgement():
    task = gold("x", -3)
    unit, turn = unit_of(task.item)
    assert gold_units([task, pair("other")]) == {unit: -3 * turn}


def test_gold_accuracy_counts_directions():
    known = {unit_named("g1"): 2.0, unit_named("g2"): -1.0, unit_named("g3"): 0.0}
    votes = {"g1": 3, "g2": 1, "g3": 0, "o": 1}
    assert gold_accuracy([said(unit, "ann", vote, n) for n, (unit, vote) in enumerate(votes.items())], known) == Share(2, 3)


def test_a_ranking_of_gold_is_one_judgement():
    gold = {unit_named(f"g{n}"): 1.0 for n in range(6)}
    mostly, seldom = [[said(f"g{n}", "ann", 1 if n < right else -1, 7) for n in range(6)] for right in (4, 3)]
    assert (gold_accuracy(mostly, gold), gold_accuracy(seldom, gold)) == (Share(1, 1), Share(0, 1))


def test_self_consistency_compares_repeats_with_the_first_time():
    found = [said("x", "a", 1, 1), said("y", "a", 1, 2), said("x", "a", 2, 3, purpose="repeat")]
    found.append(said("y", "a", -1, 4, purpose="repeat"))
    assert self_consistency(found) == Share(1, 2)


def test_nobody_reads_more_than_a_hundred_characters_in_a_second():
    found = [said("x", "a", 1, latency=0.2), said("y", "a", 1, latency=1.0)]
    assert hasty_share([*found, said("z", "a", 1, latency=-1.0)], 100) == Share(1, 2)


def test_sides_count_where_one_was_taken():
    found = [said("x", "a", 1, side=1), said("y", "a", -1, side=-1), said("z", "a", -1, side=1), said("t", "a", 0)]
    assert left_share(found) == Share(2, 3)


@pytest.mark.parametrize(("right", "of", "chance"), [(10, 10, 2 / 1024), (5, 10, 1.0), (1, 4, 10 / 16), (0, 0, 1.0)])
def test_the_chance_of_a_coin_by_hand(right, of, chance):
    assert binomial_chance(Share(right, of)) == pytest.approx(chance)


@pytest.mark.parametrize(
    ("right", "of", "p", "chance"), [(1, 1, 0.9, 1.0), (0, 1, 0.9, 0.2), (0, 2, 0.5, 0.5), (7, 10, 0.98, 0.0017)]
)
def test_the_chance_of_a_share_by_hand(right, of, p, chance):
    assert binomial_chance(Share(right, of), p) == pytest.approx(chance, rel=0.02)


def test_the_sign_table_keeps_the_first_judgement_and_marks_gaps():
    units, names, sign_AU = sign_table([said("x", "b", -2, 2), said("x", "b", 1, 1), said("y", "a", 0, 3)])
    assert (units, names) == ([unit_named("x"), unit_named("y")], ["a", "b"])
    assert sign_AU[1].tolist()[0] == 1
    assert math.isnan(sign_AU[0][0])


def test_probabilities_are_bayes_rule():
    third = math.log(2)  # accuracy 2/3
    assert preference_probability([(1, third), (1, third), (-1, third)]) == pytest.approx(2 / 3)
    assert preference_probability([(0, 5.0)]) == 0.5


def test_shares_are_weighted_and_smoothed():
    assert preference_share([(1, 1.0), (1, 1.0), (-1, 1.0), (0, 1.0)], smoothing=0) == pytest.approx(2.5 / 4)
    assert preference_share([(1, 1.0)], smoothing=1) == pytest.approx(2 / 3)


def people(units=60):
    """Two who agree, one who says the opposite, one who always takes the first, in a flash, on the left."""
    found = []
    for number in range(units):
        truth, side = 1 if number % 2 else -1, 1 if number % 3 else -1
        for name, preference in (("good", truth), ("fine", truth), ("bad", -truth), ("lazy", side)):
            latency = 0.2 if name == "lazy" else 30.0
            found.append(said(f"u{number}", name, preference, len(found) + 1, side=side, latency=latency))
    return found


def report_of(found, known=()):
    return {quality.annotator: quality for quality in assess(found, dict(known))}


def test_concerns_name_what_is_wrong():
    report = report_of(people(), {unit_named(f"u{number}"): (1.0 if number % 2 else -1.0) for number in range(0, 60, 4)})
    assert report["good"].concerns == report["fine"].concerns == ()
    assert set(report["bad"].concerns) == {"gold", "against the others"}
    assert {"hasty", "one side"} <= set(report["lazy"].concerns)
    assert report["good"].weight > 2 > report["bad"].weight == 0


def test_who_lies_together_on_some_pairs_is_refuted_by_gold():
    """Three who lie together on two pairs of five are right on 12 of 20 gold, which is no failure; the others miss few."""
    found = []
    for number in range(200):
        for name in ("ann", "bob", "x", "y", "z"):
            wrong = number % 5 < 2 if name in "xyz" else number % 10 == {"ann": 3, "bob": 7}[name]
            found.append(said(f"u{number}", name, -1 if wrong else 1, len(found) + 1))
    report = report_of(found, {unit_named(f"u{number}"): 1.0 for number in range(20)})
    assert report["x"].gold == Share(12, 20)
    assert "gold refutes agreement" in report["x"].concerns
    assert min(report[name].weight for name in ("ann", "bob")) > 3 * report["x"].weight


def test_an_annotator_who_shares_nothing_has_no_estimate():
    [quality] = assess([said("x", "a", 1)], {})
    assert math.isnan(quality.accuracy)
    assert quality.weight == 0


def test_what_only_one_has_judged_speaks_for_nobody():
    """Somebody who contradicts all others must not be believed for the many units that nobody else has looked at."""
    alone = [said(f"alone{number}", "bad", 1 if number % 2 else -1, 1000 + number) for number in range(1000)]
    report = report_of(people() + alone)
    assert "against the others" in report["bad"].concerns
    assert report["good"].concerns == report["fine"].concerns == ()
    assert report["good"].weight > 2 > report["bad"].weight == 0


def test_ties_of_the_others_are_no_estimate_of_who_takes_a_side():
    found = [said(f"u{n}", "a", 1 if n % 2 else -1, n) for n in range(50)] + [said(f"u{n}", "b", 0, 50 + n) for n in range(50)]
    assert [math.isnan(quality.accuracy) for quality in assess(found, {})] == [True, True]


def test_what_all_agree_on_is_no_dispute_however_little_their_votes_weigh():
    found = [said("agreed", "a", 1), said("agreed", "b", 1)]
    assert to_adjudicate(found, {"a": 0.05, "b": 0.05}) == []


def test_disputed_units_are_adjudicated_the_least_certain_first():
    weights = {"a": 1.0, "b": 1.0, "c": 0.1}
    found = [said("even", "a", 1), said("even", "b", -1), said("sure", "a", 1), said("sure", "b", 1)]
    found += [said("close", "a", 1), said("close", "c", -1), said("single", "a", 1)]
    found += [said("settled", "a", 1), said("settled", "b", -1), said("settled", "judge", 1, purpose="adjudication")]
    assert [unit.prompt for unit in to_adjudicate(found, weights)] == ["even", "close"]
