"""The stage that asks: what it refuses, and that it travels as plain values."""

from dataclasses import replace

import pytest

from penstock.algos import SFT
from penstock.config.ask import Ask, Judge, ServedJudge, Simulated
from penstock.config.parts import DataSpec, ModelSpec, RewardSpec
from penstock.config.run import LearnerSpec, Offline, Run
from penstock.config.spec import parse, plain
from penstock.core.errors import SpecError

TRUTH = RewardSpec(function="exact_match")
POLICY = {"name": "ask", "model": ModelSpec(path="policy"), "data": DataSpec(source="prompts.jsonl")}


def ask(**fields):
    return Ask(**{**POLICY, **fields})


def test_a_run_that_asks_travels_as_plain_values():
    simulated = Simulated(name="ann"), Simulated(name="ben")
    people = (*simulated, Judge(name="j", reward=TRUTH), ServedJudge(name="s", url="http://x"))
    run = Run(name="r", stages=(ask(annotators=people, truth=TRUTH, overlap=2),))
    assert parse(Run, plain(run)) == run


def test_a_step_is_a_question():
    asked = ask(questions=5, duels=3, anchors=2, against=ModelSpec(path="before"), scorers="@a+@b")
    assert asked.steps == 10
    assert asked.models() == ["policy", "before", "@a", "@b"]


def test_a_stage_that_asks_computes_in_the_type_of_whoever_trained_what_it_asks_about():
    def trained(name, dtype):
        learner = LearnerSpec(dtype=dtype)
        return Offline(**{**POLICY, "name": name}, algorithm=SFT(), batch=1, steps=1, learner=learner)

    def about(path, *before):
        return replace(ask(), model=ModelSpec(path=path)).dtype_in(before)

    stages = trained("first", "mixed"), trained("second", "bfloat16"), replace(ask(), model=ModelSpec(path="@second"))
    assert about("@first", *stages) == "mixed"
    assert about("@second", *stages) == about("@ask", *stages) == "bfloat16"
    assert about("elsewhere", *stages) == "mixed"
    assert about("elsewhere") == "float32"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": ModelSpec()}, "nothing to ask about"),
        ({"samples": 1}, "no pair"),
        ({"questions": 129}, "questions=129 of 128 candidates"),
        ({"duels": 1}, "an opponent"),
        ({"mix": {"random": 0.5, "near_tie": 0.5}}, "needs reward models"),
        ({"against": ModelSpec(path="before")}, "report card needs reward models"),
        ({"against": ModelSpec(path="before"), "scorers": "@a"}, "judged by its duels"),
        ({"duel_overlap": 0}, "duel_overlap=0"),
        ({"annotators": (Simulated(name="ann"),) * 2, "truth": TRUTH}, "names repeat"),
        ({"annotators": (Simulated(name="ann"),), "truth": TRUTH}, "overlap=3 of 1"),
        ({"annotators": tuple(Simulated(name=name) for name in "abc")}, "need a truth"),
        ({"annotators": (TRUTH,)}, "annotators are"),
        ({"deadline": 0.0}, "deadline=0"),
        ({"project": "legal"}, "project=legal needs a store that has it"),
    ],
)
def test_an_impossible_stage_is_refused_with_the_fix(fields, message):
    with pytest.raises(SpecError, match=message):
        ask(**fields)


@pytest.mark.parametrize(
    ("stage", "message"),
    [(Simulated(name="ann"), "is no stage"), (ask(scorers="@a"), '"@a" names no earlier stage')],
    ids=["an annotator", "scorers of no earlier stage"],
)
def test_what_is_no_stage_of_a_run_is_refused(stage, message):
    with pytest.raises(SpecError, match=message):
        Run(name="r", stages=(stage,))
