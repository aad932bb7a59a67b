"""From samples to questions and from votes to sides, by hand."""

import math

import pytest
from feedback_examples import EQUAL, answer, answers, enrol, pair

from penstock.core.blobs import Blob
from penstock.feedback.asking import (
    DUEL,
    Answered,
    Asked,
    Tally,
    anchored,
    candidates,
    duels,
    judged_pairs,
    questions,
    read,
    repeated,
    write,
)
from penstock.feedback.errors import FeedbackError
from penstock.feedback.exchange.snapshot import COMMON_WEIGHT, Votes, snapshot
from penstock.feedback.judgements import Unit, unit_of
from penstock.feedback.policy import QueuePolicy
from penstock.feedback.records import Response
from penstock.feedback.select import Mix

RANDOM = Mix({"random": 1.0})


def answered(name, *texts, scores=()):
    return Answered(name, f"p/0/{name}", tuple(Response(text, run="r", version=7) for text in texts), tuple(scores))


def test_each_two_samples_are_a_candidate_unless_they_say_the_same():
    one, two = answered("a", "x", "y", "z"), answered("b", "x", "x", "y", "z")
    assert [(pair[0].prompt, *pair[1:]) for pair in candidates([one, two])] == [("a", 0, 1), ("b", 2, 3)]


def test_half_of_the_questions_are_those_on_which_the_models_disagree_most():
    agreed = [answered(str(i), "x", "y", scores=((1.0, 0.0), (1.0, 0.0))) for i in range(9)]
    torn = answered("torn", "x", "y", scores=((3.0, 0.0), (0.0, 3.0)))
    found = questions([*agreed, torn], 4, Mix({"random": 0.5, "disagreement": 0.5}), seed=1, overlap=2)
    chosen = {one.task.item.prompt: one for one in found}
    assert chosen["torn"].margins == (3.0, -3.0)
    assert chosen["torn"].margin == 0.0
    assert [one.task.strategy for one in found] == ["random", "random", "disagreement", "disagreement"]
    assert {one.task.overlap for one in found} == {2}


def test_a_policy_that_repeats_itself_is_asked_about_less():
    assert len(questions([answered("a", "x", "y"), answered("b", "x", "x")], 2, RANDOM, seed=0)) == 1


def test_a_duel_has_the_judged_policy_first_and_the_scores_of_both():
    mine, theirs = answered("a", "new", "other", scores=((2.0, 9.0),)), answered("a", "old", scores=((0.5,),))
    (duel,) = duels([mine], [theirs], 5)
    assert [response.text for response in duel.task.item.responses] == ["new", "old"]
    assert (duel.task.strategy, duel.margins) == ("duel", (1.5,))


def test_only_random_questions_are_asked_again_as_anchors():
    before = [Asked(pair("a")), Asked(pair("b", strategy="near_tie")), Asked(pair("c"))]
    found = repeated(before, 5, "week 2")
    assert [one.task.item.prompt for one in found] == ["prompt a", "prompt c"]
    assert {(one.task.purpose, one.task.round) for one in found} == {("anchor", "week 2")}


def test_questions_are_read_as_they_were_written(tmp_path):
    response = Response(
        "x", tokens=(1, 2, 3), logp=(-0.125, -1.5), run="r", stage="s", version=3, sampling={"temperature": 1.0}
    )
    asked = [Answered("p", "k", (response, Response("y")), ((1.0, 0.25),)).pair(0, 1, overlap=2), Asked(pair("z"))]
    shown, heard = Blob("0" * 64, "image/png", 3), Blob("1" * 64, "audio/wav", 4)
    asked.append(Answered("p", "k", (Response("a", blobs=(shown,)), Response("b")), blobs=(heard,)).pair(0, 1, overlap=1))
    write(asked, tmp_path / "asked" / "ask.jsonl")
    assert read(tmp_path / "asked" / "ask.jsonl") == asked


def test_a_question_that_was_changed_on_disk_is_refused(tmp_path):
    file = tmp_path / "ask.jsonl"
    write([Asked(pair("a"))], file)
    file.write_text(file.read_text().replace("first a", "other a"))
    with pytest.raises(FeedbackError, match=r":1: not a question"):
        read(file)


@pytest.fixture
def store(store):
    store.policy = QueuePolicy(held=50)
    enrol(store, "ann", "ben", "cleo")
    return store


def test_a_tally_counts_what_stands(store):
    tasks = [pair("a"), pair("b"), pair("other")]
    store.ask(tasks)
    tally = Tally(tasks[:2])
    answers(store, [tasks[0].id], "ann", "ben")
    answer(store, tasks[2].id, "ann")
    tally.hear(store.events(after=tally.heard))
    assert (tally.answered, tally.votes, tally.by_annotator()) == (1, 2, {"ann": 1, "ben": 1})
    store.undo("ben", "oops")
    tally.hear(store.events(after=tally.heard))
    assert (tally.answered, tally.votes) == (0, 1)


def voted(store, asked, *signs):
    """Votes of ann, ben and cleo on each question."""
    store.ask([one.task for one in asked])
    for one, given in zip(asked, signs, strict=True):
        for name, sign in zip(("ann", "ben", "cleo"), given, strict=False):
            answer(store, one.task.id, name, sign)
    return Votes.of(snapshot(store), EQUAL)


def test_a_side_is_the_weighted_majority(store):
    asked = [Asked(pair(name, overlap=3)) for name in "abc"]
    votes = voted(store, asked, (1, 1, -1), (-1, 0, 0), (1, -1))
    units = [unit_of(one.task.item) for one in asked]
    found = [turn * votes.log_odds(unit) for unit, turn in units]
    assert found == pytest.approx([COMMON_WEIGHT, -COMMON_WEIGHT, 0])
    assert votes.log_odds(Unit("nobody", "asked", "this")) == 0


def test_judged_pairs_are_random_questions_with_a_side(store):
    asked = [
        Asked(pair("a"), (0.5, 1.5)),
        Asked(pair("b", strategy="near_tie"), (1.0,)),
        Asked(pair("c"), (1.0,)),
        Asked(pair("d")),
        Asked(pair("e", strategy="duel"), (2.0,)),
    ]
    found = judged_pairs(asked, voted(store, asked, (-1,), (1,), (0,), (1,), (1,)))
    worth = COMMON_WEIGHT
    assert [(one.log_odds, one.margin, one.correct) for one in found] == [(-worth, 1.0, False)]
    assert found[0].lengths == (len("first a"), len("second a"))


def test_duels_are_heard_without_ties_and_beside_what_was_expected(store):
    asked = [Asked(pair("r"), (1.0,))] + [
        Asked(pair(name, strategy="duel"), (margin,)) for name, margin in (("a", 1.0), ("b", 1.0), ("c", -1.0), ("d", 1.0))
    ]
    found = judged_pairs(asked, voted(store, asked, (1,), (1,), (-1,), (-1,), (0,)), DUEL)
    assert [(math.copysign(1, one.log_odds), one.margin) for one in found] == [(1, 1.0), (-1, 1.0), (-1, -1.0)]


def test_anchors_compare_the_same_pair_in_two_rounds(store):
    before = [Asked(pair(name)) for name in "ab"]
    again = repeated(before, 2, "later")
    votes = voted(store, before + again, (1, 1), (1, 1), (-1, -1), (1, 1))
    change = anchored(again, before, votes)
    assert (change.anchors, change.change) == (2, 0.5)
    assert anchored(before, [], votes) is None
