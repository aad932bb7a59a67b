"""The see recipe: its rows, a short run in one process and in several, and (slow) that it learns."""

from dataclasses import replace

import numpy as np
import pytest

from penstock.core.errors import DataError
from penstock.recipes.see import DIGITS, SHAPES, SIDE, questions, see, shapes
from penstock.runtime import launch


def short(**changes):
    """Two steps of each stage on few shapes."""
    run = see(pictures="shapes", imitated=2, steps=2)
    sft, grpo = run.stages
    few = {"size": 6, "shuffle": False}
    evaluation = replace(grpo.evaluation, data=replace(grpo.evaluation.data, **few))
    sft = replace(sft, batch=4, data=replace(sft.data, size=64), evaluation=None)
    grpo = replace(grpo, batch=4, samples=4, evaluation=evaluation)
    return replace(run, stages=(sft, grpo), headline="", **changes)


def test_every_fifth_picture_is_held_out():
    train, held_out = questions("shapes", False), questions("shapes", True)
    assert len(held_out) == 400
    assert len(train) == 1600
    assert not {row["image"].tobytes() for row in train} & {row["image"].tobytes() for row in held_out}


def test_shapes_are_grey_pictures_of_all_kinds():
    pictures, names = shapes(40, seed=0)
    assert pictures.shape == (40, SIDE, SIDE)
    assert pictures.dtype == np.uint8
    assert set(names) == set(SHAPES)


def test_digits_are_enlarged_handwriting():
    pytest.importorskip("sklearn")
    rows = questions("digits", False)
    assert rows[0]["image"].shape == (SIDE, SIDE)
    assert {row["answer"] for row in rows} == set(DIGITS)
    assert (rows[0]["image"][::3, ::3] == rows[0]["image"][1::3, 2::3]).all()


def test_without_scikit_learn_the_message_says_what_to_do(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "sklearn.datasets", None)
    with pytest.raises(DataError, match=r"pip install 'penstock\[digits\]', or --pictures shapes"):
        questions("digits", False)


def trained(result):
    """The metrics of the steps of GRPO."""
    return [event["values"] for event in result.metrics if "mismatch/max" in event["values"]]


def test_a_short_run_begins_at_ratio_one_and_stores_each_picture_once(tmp_path):
    result = launch(short(), tmp_path / "run")
    steps = trained(result)
    assert len(steps) == 2
    assert steps[0]["mismatch/max"] < 1e-4
    assert steps[0]["max/ratio_deviation"] < 1e-4
    shown = {row["image"].tobytes() for row in [*questions("shapes", False), *questions("shapes", True)]}
    blobs = list((tmp_path / "run" / "blobs").iterdir())
    assert 8 < len(blobs) <= len(shown)
    seen = [row for event in result.samples for row in event["rows"]]
    assert seen
    assert "<image>" in seen[0]["prompt"]


@pytest.mark.slow
def test_a_short_run_in_processes_has_the_same_log_probs_in_generator_and_learner(tmp_path):
    steps = trained(launch(short(runtime="procs"), tmp_path / "run"))
    assert len(steps) == 2
    assert max(step["mismatch/max"] for step in steps) < 1e-4


@pytest.mark.slow
def test_grpo_takes_over_where_imitation_ended(tmp_path):
    pytest.importorskip("sklearn")
    result = launch(see(steps=60), tmp_path / "run")
    stages = result.summary["stages"]
    assert stages["grpo"]["last"]["evaluation/reward"] > stages["sft"]["last"]["evaluation/reward"] + 0.1
