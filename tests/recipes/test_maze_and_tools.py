"""The recipes with environments run, and their teachers are as careless as they say."""

from dataclasses import replace

import pytest

from penstock.recipes.maze import maze
from penstock.recipes.tools import questions, tools
from penstock.runtime import launch


def test_the_teacher_of_sums_guesses_every_second_time_and_takes_any_sign():
    rows = questions("calculator", 400, 1)
    called = [row for row in rows if len(row["said"]) == 4]
    assert 0.4 < len(called) / len(rows) < 0.6
    assert 0.2 < sum(row["said"][-1]["content"] == row["answer"] for row in called) / len(called) < 0.5


def test_the_teacher_of_the_table_reads_any_column():
    rows = questions("sql", 300, 1)
    assert all('"name": "query"' in row["said"][1]["content"] for row in rows)
    assert 0.2 < sum(row["said"][-1]["content"] == row["answer"] for row in rows) / len(rows) < 0.5


@pytest.mark.parametrize("run", [maze(steps=1), tools(imitation=1, steps=1)], ids=["maze", "calculator"])
def test_a_recipe_runs_and_evaluates(run, tmp_path):
    sft, grpo = run.stages
    evaluation = replace(grpo.evaluation, data=replace(grpo.evaluation.data, size=4))
    small = replace(grpo, samples=4, batch=2, evaluation=evaluation)
    result = launch(replace(run, stages=(replace(sft, steps=1, batch=4), small), threads=1), tmp_path / "run", [])
    (*_, last) = [event["values"] for event in result.metrics if "evaluation/reward" in event["values"]]
    assert last["evaluation/episode/turns"] >= 1
