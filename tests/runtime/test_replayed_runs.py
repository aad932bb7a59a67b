"""A mixture of experts is reinforced with replayed routes in one process, with lag and a resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_runs import MODEL, grpo, run_of, told

import penstock
from penstock.algos import GRPO
from penstock.config.keeping import CheckpointSpec
from penstock.config.learner import LearnerSpec
from penstock.config.run import ModelSpec, Run
from penstock.core.errors import ModelError
from penstock.loops.learn import Trainer
from penstock.models.experts import ROUTES
from penstock.models.files import load_model, save_model
from penstock.runtime import launch
from route_examples import mixture

ROWS = [{"prompt": letters} for letters in ("ab", "bc", "cd", "de", "ef", "fg")]


def length(sample: Any, columns: Any) -> float:
    return float(sample.action_T.sum()) + sum(letter in "aeiou" for letter in sample.text)


def a_run(model: ModelSpec) -> Run:
    learner = LearnerSpec(learning_rate=1e-3, replay_routes=True, share_prefix=True)
    stage = grpo(
        f"{__file__}:length", tokens=5, model=model, data=penstock.rows(ROWS), algorithm=GRPO(clip=(0.2, 0.28)),
        learner=learner, samples=3, steps=4, max_lag=1,
    )  # fmt: skip
    return run_of(stage, checkpoint=CheckpointSpec(every=1))


@pytest.fixture
def folder(text: Any, tmp_path: Path) -> ModelSpec:
    save_model(mixture(text), tmp_path / "mixture")
    return ModelSpec(path=str(tmp_path / "mixture"))


def weights(run: Path) -> dict[str, Any]:
    return {name: tensor.detach().clone() for name, tensor in load_model(str(run / "model")).policy_weights()}


def test_a_stage_ends_with_it_and_a_resume_goes_on_with_the_routes(
    folder: ModelSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch(a_run(folder), tmp_path / "whole")
    assert len(told(tmp_path / "whole", kind="metrics")) == 4
    inner, seen = Trainer.step, []

    def failing(self: Any, units: Any, *given: Any, **named: Any) -> Any:
        seen.extend(row.columns[ROUTES].shape[1:] for unit in units for row in unit)
        if len(seen) > 15:
            raise KeyboardInterrupt
        return inner(self, units, *given, **named)

    monkeypatch.setattr(Trainer, "step", failing)
    with pytest.raises(KeyboardInterrupt):
        launch(a_run(folder), tmp_path / "cut")
    assert set(seen) == {(2, 2)}
    monkeypatch.undo()
    launch(a_run(folder), tmp_path / "cut", resume=True)
    whole, resumed = weights(tmp_path / "whole"), weights(tmp_path / "cut")
    assert all(bool((whole[name] == resumed[name]).all()) for name in whole)


def test_a_model_without_experts_is_refused_before_its_first_step(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"^grpo: Qwen2ForCausalLM has no experts.*; set learner\.replay_routes=false$"):
        launch(a_run(MODEL), tmp_path / "run")
