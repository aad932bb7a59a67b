"""A process that evaluates beside training measures the version it was asked for."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from runs import Start, events


def evaluations(run: Path) -> dict[int, float]:
    """The held-out reward by step."""
    found = (event for event in events(run) if event["kind"] == "metrics")
    return {event["step"]: event["values"]["evaluation/reward"] for event in found if "evaluation/reward" in event["values"]}


@pytest.mark.slow
def test_the_evaluator_measures_what_the_learner_would_have_measured(start: Start, undisturbed: Callable[..., Path]) -> None:
    run = start("examined", "--evaluator", "true")
    assert run.wait() == 0, run.everything()
    assert evaluations(run.run) == evaluations(undisturbed("examined"))
    assert set(evaluations(run.run)) == {0, 3, 6, 9}
    run.assert_clean()


@pytest.mark.slow
def test_an_evaluator_that_is_killed_is_asked_again(start: Start, undisturbed: Callable[..., Path]) -> None:
    run = start("examined", "--evaluator", "true")
    run.until(lambda: "evaluator-0" in run.roles, what="an evaluator")
    run.signal("evaluator-0", signal.SIGKILL)
    assert run.wait() == 0, run.everything()
    assert evaluations(run.run) == evaluations(undisturbed("examined"))
    run.assert_clean()
