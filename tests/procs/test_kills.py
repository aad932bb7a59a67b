"""Processes that are killed: nothing is lost, nothing is trained twice, and the weights are those of an undisturbed run."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from runs import Start, Started, assert_each_trained_once, weights

ROLES = ("generator-0", "reward-0", "learner")


def assert_as_if_nothing_had_happened(run: Started, steps: int, whole: Path) -> None:
    run.go()
    assert run.wait() == 0, run.everything()
    assert_each_trained_once(run.folder, steps)
    assert weights(run.run) == weights(whole)
    run.assert_clean()


@pytest.mark.timeout(120)
def test_after_kills_of_every_role_a_run_ends_as_if_nothing_had_happened(
    start: Start, undisturbed: Callable[..., Path]
) -> None:
    words = ("letters", "--steps", "16", "--delay", "0.02", "--hold", "60")
    run = start(*words)
    for number, name in enumerate(ROLES * 2):
        run.until_step(1 + 2 * number)
        run.signal(name, signal.SIGKILL)
    assert_as_if_nothing_had_happened(run, 16, undisturbed(*words))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_after_fifty_kills_of_each_role_a_run_ends_as_if_nothing_had_happened(
    start: Start, undisturbed: Callable[..., Path]
) -> None:
    """Fifty rounds; in each, every role dies at a moment of its own, and then the run gets on by a step at least."""
    draws = random.Random(0)
    words = ("letters", "--steps", "400", "--delay", "0.02", "--hold", "1596")
    run = start(*words)
    run.until_step(1)
    for _ in range(50):
        moments = sorted((draws.random() * 0.5, name) for name in ROLES)
        began, before = time.monotonic(), run.step
        for moment, name in moments:
            time.sleep(max(0.0, began + moment - time.monotonic()))
            run.signal(name, signal.SIGKILL)
        run.until_step(min(before + 1, 399))
    assert all(len([note for note in run.notes("role restarted") if note["role"] == name]) >= 45 for name in ROLES)
    assert_as_if_nothing_had_happened(run, 400, undisturbed(*words))
