"""The recipe of the process reward model: its solutions and labels by hand, and that a run starts and learns."""

import numpy as np
import pytest

from penstock.algos import GRPO, ProcessReward
from penstock.cli.recipe import build
from penstock.core.errors import SpecError
from penstock.core.types import PromptKey, Sample, SampleKey
from penstock.recipes.math_prm import DIGITS, SLIP, attempt, math_prm, right_answer, solution, solutions
from penstock.runtime import launch
from tiers import LANGUAGE


def sample(text):
    nothing = np.zeros(0, np.int32)
    return Sample(SampleKey(PromptKey("p", 0, 0), 0), {"tokens_T": nothing}, nothing > 0, nothing, nothing, "stop", text)


def test_the_right_steps_keep_the_last_digit_of_the_running_sum():
    assert solution("7+5+9") == ["7+5=2", "2+9=1"]


def test_a_teacher_who_never_slips_is_right_and_one_who_always_does_is_wrong_at_every_step():
    draw = np.random.default_rng(0)
    assert attempt("7+5+9", draw, slip=0.0) == solution("7+5+9")
    steps = attempt("7+5+9", draw, slip=1.0)
    assert all(step != f"{step[:4]}{(int(step[0]) + int(step[2])) % 10}" for step in steps)
    assert steps[1][0] == steps[0][-1]  # goes on from what he wrote


def test_labels_say_which_steps_are_those_of_the_right_solution():
    for row in solutions(100, 0):
        truth = solution(row["chain"])
        assert row["labels"] == [int(step == right) for step, right in zip(row["steps"], truth, strict=True)]
        assert row["text"] == "".join(f"{step}\n" for step in row["steps"])
        assert row["last"] == truth[-1]


def test_about_as_many_answers_are_right_as_the_chance_of_a_slip_says():
    right = np.mean([all(row["labels"]) for row in solutions(2000, 0)])
    assert right == pytest.approx((1 - SLIP) ** (DIGITS - 1), abs=0.04)


def test_held_out_chains_are_never_trained_on():
    train, held_out = ({row["chain"] for row in solutions(3000, 0, part)} for part in (False, True))
    assert not train & held_out
    assert len(held_out) > 100


@pytest.mark.parametrize(
    ("text", "reward"), [("7+5=2\n2+9=1\n", 1.0), ("7+5=2\n2+9=1", 1.0), ("7+5=2\n", 0.0), ("2+9=1\n2+9=2\n", 0.0), ("", 0.0)]
)
def test_an_answer_is_right_if_its_last_line_is_the_right_last_step(text, reward):
    assert right_answer(sample(text), {"last": "2+9=1"}) == reward


def test_the_policy_is_never_told_which_answers_are_right():
    sft, prm, grpo = math_prm().stages
    assert isinstance(prm.algorithm, ProcessReward)
    assert all("right" not in reward.function for reward in grpo.rewards)
    assert isinstance(grpo.algorithm, GRPO)
    assert grpo.algorithm.kl.coefficient > 0
    assert [reward.name for reward in grpo.rewards] == ["prm", "complete"]
    assert [reward.weight for reward in grpo.evaluation.rewards] == [1.0, 0.0]
    assert sft.evaluation.data.options["held_out"]


def test_a_run_starts(tmp_path):
    words = "--threads 1 --sft.steps 1 --sft.batch 8 --sft.evaluation.data.size 8 --prm.steps 1 --prm.batch 8"
    more = "--prm.evaluation.data.size 8 --steps 1 --grpo.batch 4 --grpo.evaluation.data.size 4"
    summary = launch(build("math_prm", f"{words} {more}".split()), tmp_path / "run").summary
    last = summary["stages"]["grpo"]["last"]
    assert last["evaluation/best_of_1"] == pytest.approx(last["evaluation/reward"])
    assert 0 <= last["evaluation/best_of_8"] <= 1
    assert summary["headline"].startswith("right 0.0%, best of 8 ")


@pytest.mark.parametrize("slip", [-0.1, 1.0, 2.0])
def test_a_slip_that_is_no_chance_is_refused(slip):
    with pytest.raises(SpecError, match=r"slip=.* is no chance"):
        math_prm(slip=slip)


@pytest.mark.learning(*LANGUAGE)
@pytest.mark.timeout(900)
def test_best_of_n_and_grpo_surpass_the_teacher(tmp_path):
    stages = launch(build("math_prm", ["--threads", "1"]), tmp_path / "run").summary["stages"]
    first, last = stages["grpo"]["first"], stages["grpo"]["last"]
    assert stages["prm"]["last"]["evaluation/step/accuracy"] > 0.85
    assert first["evaluation/best_of_8"] > first["evaluation/reward"] + 0.2
    assert last["evaluation/reward"] > first["evaluation/reward"] + 0.15
