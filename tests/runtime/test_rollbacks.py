"""Weights go back in a whole run: to a healthy checkpoint, at a lower rate, with other prompts; and a stage may end early."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_runs import run_of, told, values
from test_skipped_steps import STAGES, infinite

import penstock
from penstock.ckpt.store import CheckpointStore
from penstock.config.keeping import CheckpointSpec
from penstock.config.run import EvaluationSpec, RewardSpec, Run
from penstock.observe.history import LIMITS
from penstock.observe.sentinels import Sentinels
from penstock.runtime import launch
from penstock.train.learner import DeviceLearner

__all__ = ["infinite"]


def easy_then_hard(sample: Any, columns: Any, easy: int) -> float:
    """Nine of ten are right at first, then one of ten."""
    number = int(columns["number"])
    return float(number % 10 > 0) if number < easy else float(number % 10 == 0)


def checkpointed(stage: Any, **fields: Any) -> Run:
    return run_of(replace(stage, **fields), checkpoint=CheckpointSpec(every=2, keep=1))


@pytest.mark.parametrize("stage", STAGES.values(), ids=STAGES)
def test_weights_go_back_after_three_steps_that_were_not_finite(
    stage: Any, infinite: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, known = [], DeviceLearner.load_state

    def load(learner: DeviceLearner, state: Any) -> None:
        loaded.append(state.values["updates"])
        known(learner, state)

    monkeypatch.setattr(DeviceLearner, "load_state", load)
    infinite(4, 5, 6)
    launch(checkpointed(stage, steps=10), tmp_path / "run")
    alarms = told(tmp_path / "run", kind="sentinel", sentinel="non-finite")
    assert [(alarm["step"], alarm["action"]) for alarm in alarms] == [(5, "skip"), (6, "skip"), (7, "roll back")]
    (back,) = told(tmp_path / "run", kind="sentinel", action="roll back")
    assert "went back to the weights of step 4" in back["message"]
    assert loaded == [4]
    rates = dict(values(tmp_path / "run", "learning_rate"))
    assert rates[8] == pytest.approx(LIMITS.slower * rates[4])
    assert max(values(tmp_path / "run", "loss"))[0] == 10


def test_a_checkpoint_from_amid_trouble_is_not_a_good_one(infinite: Any, tmp_path: Path) -> None:
    infinite(4)
    launch(checkpointed(STAGES["online"], steps=6), tmp_path / "run")
    good = {entry.position.step: entry.good for entry in CheckpointStore(tmp_path / "run/checkpoints").entries()}
    assert good == {4: True, 6: False}


def test_a_stage_that_is_over_early_is_evaluated_saved_and_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = Sentinels.remember

    def remember(sentinels: Sentinels, facts: Any) -> None:
        known(sentinels, facts)
        sentinels.over = len(sentinels._first) == 3

    monkeypatch.setattr(Sentinels, "remember", remember)
    held_out = EvaluationSpec(
        data=penstock.rows([{"prompt": "ab", "answer": "b"}]), rewards=(RewardSpec(function="exact_match"),), every=100
    )
    run = checkpointed(STAGES["online"], steps=10, evaluation=held_out)
    result = launch(run, tmp_path / "run")
    assert max(values(tmp_path / "run", "loss"))[0] == 3
    assert [step for step, _ in values(tmp_path / "run", "evaluation/reward")] == [0, 3]
    assert result.model_path.exists()
    assert launch(run, tmp_path / "run", resume=True).summary == result.summary


def test_harder_data_take_weights_back_once_and_then_are_what_batches_are_compared_with(tmp_path: Path) -> None:
    rows = penstock.rows([{"prompt": "ab", "number": number} for number in range(200)])
    reward = RewardSpec(function=f"{Path(__file__)}:easy_then_hard", options={"easy": 80})
    run = checkpointed(STAGES["online"], data=replace(rows, shuffle=False), rewards=(reward,), batch=4, steps=45)
    launch(run, tmp_path / "run")
    alarms = told(tmp_path / "run", kind="sentinel", sentinel="reward fall")
    assert [(event["state"], event["action"]) for event in alarms] == [
        ("tripped", "roll back"),
        ("tripped", "skip"),
        ("tripped", ""),
    ]
    rates = dict(values(tmp_path / "run", "learning_rate"))
    assert len(dict(values(tmp_path / "run", "steps/skipped"))) == LIMITS.doubted - 1
    assert rates[45] == pytest.approx(rates[20])
