"""What a sweep is refused for, before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from sweep_examples import BATCH, RATE, RECIPES, sweep_of

from penstock.cli.main import main
from penstock.core.errors import CheckpointError, SpecError
from penstock.sweep import plan as plans
from penstock.sweep.dimensions import Dimension
from penstock.sweep.plan import Plan

SWEEP = ("sweep", f"{RECIPES}:tiny")
REFUSED = {
    "an unknown field": (
        ("--grpo.learner.lr", "1e-5..1e-3"),
        "unknown flag --grpo.learner.lr; here it is --grpo.learner.learning_rate",
    ),
    "an empty range": (("--grpo.learner.learning_rate", "1e-3..1e-5"), "the range is empty; write LOW..HIGH"),
    "a value that the field cannot have": (("--grpo.batch", "0..4"), "batch=0; at least 1"),
    "a choice that the field cannot have": (("--grpo.learner.schedule", "constant,wavy"), "'wavy' is not one of"),
    "nothing to sweep": ((), "nothing to sweep; give a field a range"),
    "a grid of a range": (("--grpo.batch", "2..4", "--sampler", "grid"), "--sampler grid has no grid for a range"),
    "early stopping without evaluations": (
        ("--grpo.batch", "2..4", "--stop", "asha", "--grpo.evaluation.every", "0"),
        "set --grpo.evaluation.every 1",
    ),
    "a population of changing batches": (("--grpo.batch", "2..4", "--population", "4"), "cannot change on the way"),
    "a store": (("--grpo.batch", "2..4", "--checkpoint.store", "s3://bucket/x"), "leave it out"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_input_is_one_line_and_writes_nothing(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words, said = REFUSED[case]
    assert main([*SWEEP, *words]) == 2
    shown = capsys.readouterr().err
    assert said in shown
    assert shown.count("\n") == 1
    left = [path.name for path in tmp_path.rglob("*.json") if path.parent.name != "claims"]
    assert left in ([], ["sweep.json"] if "population" in case else [])


def test_an_objective_of_a_stage_without_an_evaluation_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["sweep", f"{RECIPES}:rewarded", "--grpo.learner.learning_rate", "1e-5..1e-3", "--out", str(tmp_path / "s")]
    assert main(words) == 2
    assert "stage grpo has no evaluation" in capsys.readouterr().err


def test_a_plan_survives_its_file(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path / "s", RATE, BATCH, Dimension(name="grpo.kv", choices=("keep", "abort")), seeds=3)
    plans.begin(tmp_path / "t", {"recipe": "tiny"}, sweep.plan, sweep.base)
    asked, plan, kept = plans.read(tmp_path / "t")
    assert (asked, plan) == ({"recipe": "tiny"}, sweep.plan)
    assert plans.require_same(kept, sweep.base, tmp_path) == sweep.base


def test_a_recipe_that_changed_is_refused(tmp_path: Path) -> None:
    old, new = (sweep_of(tmp_path / str(steps), steps=steps) for steps in (18, 20))
    plans.begin(tmp_path / "t", {}, old.plan, old.base)
    with pytest.raises(CheckpointError, match=r"recipe has changed.*steps: 18 → 20"):
        plans.require_same(plans.read(tmp_path / "t")[2], new.base, tmp_path)


def test_a_folder_that_is_taken_is_refused(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path / "s")
    with pytest.raises(CheckpointError, match="is there already; go on with penstock sweep --resume"):
        plans.begin(tmp_path / "s", {}, sweep.plan, sweep.base)


def test_more_runs_than_anybody_wants_are_refused() -> None:
    with pytest.raises(SpecError, match="more than 10,000"):
        Plan(dimensions=(RATE,), trials=5000, seeds=3)
