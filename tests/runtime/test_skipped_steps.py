"""A step that is not finite in a whole run: it is left out, logged and reported, and the run ends as others do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_runs import grpo, run_of, sft, told, values

from penstock.core.errors import NonFiniteError
from penstock.core.sentinels import SentinelError
from penstock.observe.alarms import tripped
from penstock.runtime import launch
from penstock.train.learner import DeviceLearner


def by_tokens(sample: Any, columns: Any) -> float:
    """A reward that differs between samples."""
    return float(sample.tokens_T[sample.action_T].sum() % 7)


STAGES = {"offline": sft(name="stage", steps=5), "online": grpo(f"{Path(__file__)}:by_tokens", name="stage", steps=5)}


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
    result = launch(run_of(stage), tmp_path / "run")
    assert "headline" in result.summary
    (alarm,) = [one for one in tripped(told(tmp_path / "run")) if one.name == "non-finite"]
    assert (alarm.step, alarm.severity) == (3, "warning")
    assert values(tmp_path / "run", "steps/skipped") == [(3, 1.0)]
    assert {event["step"] for event in told(tmp_path / "run", kind="metrics")} >= set(range(1, 6))


def test_a_run_whose_steps_are_not_finite_again_and_again_ends(infinite: Any, tmp_path: Path) -> None:
    infinite(1, 2, 3)
    with pytest.raises(SentinelError, match="sentinel non-finite, step 4: "):
        launch(run_of(STAGES["offline"]), tmp_path / "run")


def test_sentinels_that_are_off_skip_nothing(infinite: Any, tmp_path: Path) -> None:
    infinite(1)
    with pytest.raises(NonFiniteError, match="the step was not taken"):
        launch(run_of(STAGES["offline"], sentinels="off"), tmp_path / "run")
