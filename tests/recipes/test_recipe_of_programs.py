"""The recipe of programs: its tests are those of the task, its teacher is as careless as he says, and it learns."""

from dataclasses import replace

import pytest

from penstock.recipes.programs import SIGNS, program, programs, tasks, value
from penstock.runtime import launch
from tiers import LANGUAGE


def test_a_program_and_its_value_by_hand():
    assert program(["*", "-"], [3, 5]) == "print((int(input())*3)-5)"
    assert value(7, ["*", "-"], [3, 5]) == 16
    assert value(7, ["+", "*"], [2, 4]) == 36


def test_the_teacher_takes_any_sign_every_second_time():
    rows = tasks(600, 3)
    right = sum(
        row["wrote"] == program([SIGNS[word] for word in row["task"].split() if word in SIGNS], numbers_of(row["task"]))
        for row in rows
    )
    assert 0.38 < right / len(rows) < 0.51  # (2 / 3)² of them


def numbers_of(task):
    return [int(word.strip(",:")) for word in task.split() if word.strip(",:").isdigit()]


@pytest.mark.learning(*LANGUAGE)
def test_programs_are_judged_in_the_jail_and_get_better(tmp_path):
    run = programs(imitation=60, steps=6)
    evaluation = replace(run.stages[1].evaluation, data=replace(run.stages[1].evaluation.data, size=40), every=6)
    run = replace(run, stages=(run.stages[0], replace(run.stages[1], evaluation=evaluation)), threads=1)
    found = [event["values"] for event in launch(run, tmp_path / "run", []).metrics]
    rewards = [values["reward/mean"] for values in found if "reward/mean" in values]
    assert rewards[-1] > rewards[0]
    assert sum(values.get("samples/failed", 0.0) for values in found) == 0
