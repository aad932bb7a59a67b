"""A step that is not finite in a whole run: it is left out, logged and reported, and the run ends as others do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.algos import GRPO, SFT
from penstock.config.run import ModelSpec, Offline, Online, RewardSpec, Run
from penstock.core.errors import NonFiniteError
from penstock.core.events import read_events
from penstock.core.sentinels import SentinelError
from penstock.core.types import Sampling
from penstock.observe.alarms import tripped
from penstock.runtime import launch
from penstock.train.learner import DeviceLearner


def by_tokens(sample: Any, columns: Any) -> float:
    """A reward that differs between samples."""
    return float(sample.tokens_T[sample.action_T].sum() % 7)


ROWS = penstock.rows([{"prompt": letters, "completion": "b"} for letters in ("ab", "bc", "cd")])
MODEL = ModelSpec(preset="1m", layers=1, vocabulary=300, context=32)
STAGES = {
    "offline": Offline(name="stage", model=MODEL, data=ROWS, algorithm=SFT(), batch=2, steps=5),
    "online": Online(
        name="stage", model=MODEL, data=ROWS, rewards=(RewardSpec(function=f"{Path(__file__)}:by_tokens"),), algorithm=GRPO(),
        sampling=Sampling(max_new_tokens=2), samples=2, batch=2, steps=5,
    ),
}  # fmt: skip


@pytest.fixture
def infinite(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes the loss of some passes over a batch infinite (counted from 0), and with it their gradients."""

    def at(*passes: int) -> None:
        seen, known = [0], DeviceLearner.flush

        def flush(learner: DeviceLearner) -> Any:
            if learner.noted:
                seen[0] += 1
                if seen[0] - 1 in passes:
                    learner.noted = [(value * float("inf"), metrics) for value, metrics in learner.noted]
            return known(learner)

        monkeypatch.setattr(DeviceLearner, "flush", flush)

    return at


@pytest.mark.parametrize("stage", STAGES.values(), ids=STAGES)
def test_a_run_goes_on_after_a_step_that_was_not_finite(stage: Any, infinite: Any, tmp_path: Path) -> None:
    infinite(2)
    result = launch(Run(name="run", stages=(stage,), device="cpu", threads=1), tmp_path / "run")
    assert "headline" in result.summary
    events = list(read_events(tmp_path / "run" / "events.jsonl"))
    (alarm,) = [one for one in tripped(events) if one.name == "non-finite"]
    assert (alarm.step, alarm.severity) == (3, "warning")
    skipped = {event["step"]: event["values"].get("steps/skipped") for event in events if event["kind"] == "metrics"}
    assert [skipped[step] for step in range(1, 6)] == [None, None, 1.0, None, None]


def test_a_run_whose_steps_are_not_finite_again_and_again_ends(infinite: Any, tmp_path: Path) -> None:
    infinite(1, 2, 3)
    with pytest.raises(SentinelError, match="sentinel non-finite, step 4: "):
        launch(Run(name="run", stages=(STAGES["offline"],), device="cpu", threads=1), tmp_path / "run")


def test_sentinels_that_are_off_skip_nothing(infinite: Any, tmp_path: Path) -> None:
    infinite(1)
    run = Run(name="run", stages=(STAGES["offline"],), device="cpu", threads=1, sentinels="off")
    with pytest.raises(NonFiniteError, match="the step was not taken"):
        launch(run, tmp_path / "run")
