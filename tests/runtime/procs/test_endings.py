"""However a run in processes is stopped, none of them is left, and ``--resume`` goes on to the same weights."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from runs import Start, Started, assert_each_trained_once, weights

WORDS = ("letters", "--steps", "12", "--delay", "0.02", "--hold", "44")


def assert_resumes(start: Start, whole: Path) -> None:
    resumed = start()
    resumed.go()
    assert resumed.wait() == 0, resumed.everything()
    assert_each_trained_once(resumed.folder, 12)
    assert weights(resumed.run) == weights(whole)
    resumed.assert_clean()


def signalled(run: Started, number: int) -> None:
    """Stop a run in order in a step, as a terminal or a cluster does."""
    run.until_step(4)
    run.signal("supervisor", number)
    assert run.wait(15) == 130, run.everything()
    assert "everything is saved" in run.text
    assert "penstock train --resume runs/run" in run.text
    assert "Traceback" not in run.text
    run.assert_clean()


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_one_signal_finishes_the_step_and_saves(number: int, start: Start, undisturbed: Callable[..., Path]) -> None:
    signalled(start(*WORDS), number)
    assert_resumes(start, undisturbed(*WORDS))


@pytest.mark.slow
def test_a_second_signal_stops_at_once(start: Start, undisturbed: Callable[..., Path]) -> None:
    run = start(*WORDS)
    run.until_step(11)  # the next step waits for a reward that does not come
    run.signal("supervisor", signal.SIGINT)
    run.until(lambda: "finishing the step" in run.text, what="word of the first signal")
    run.signal("supervisor", signal.SIGINT)
    assert run.wait(15) == 130, run.everything()
    assert "stopped; go on with: penstock train --resume runs/run" in run.text
    assert "Traceback" not in run.text
    run.assert_clean()
    assert_resumes(start, undisturbed(*WORDS))


def test_nothing_outlives_a_supervisor_that_is_killed(start: Start, undisturbed: Callable[..., Path]) -> None:
    run = start(*WORDS)
    run.until_step(4)
    run.signal("supervisor", signal.SIGKILL)
    run.until_gone(15)
    run.assert_clean()
    assert_resumes(start, undisturbed(*WORDS))


@pytest.mark.slow
def test_nothing_outlives_a_run_that_is_killed_whole(start: Start, undisturbed: Callable[..., Path]) -> None:
    """Even what nobody was left to clear away: the next start does it."""
    run = start(*WORDS)
    run.until_step(4)
    run.kill_everyone()
    run.until_gone(15)
    assert_resumes(start, undisturbed(*WORDS))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_at_any_moment_of_the_start_leaves_nothing(number: int, start: Start, tmp_path: Path) -> None:
    for place in range(12):
        home = tmp_path / str(place)
        home.mkdir()
        run = start("letters", "--steps", "500", "--delay", "0.02", folder=home)
        time.sleep(0.15 * (place + 1))
        run.signal("supervisor", number)
        assert run.wait(20) in (130, -number), run.everything()
        assert "Traceback" not in run.text, run.text
        assert run.left() == []


INTERRUPTED = """
from penstock.runtime.session import StageRun
def save(self, step):
    raise KeyboardInterrupt
StageRun._save = save
"""


def test_a_signal_in_the_midst_of_a_save_stops_at_once(start: Start, undisturbed: Callable[..., Path]) -> None:
    run = start(*WORDS, in_roles=INTERRUPTED)
    assert run.wait() == 130, run.everything()
    assert "Traceback" not in run.text
    run.assert_clean()
    assert_resumes(start, undisturbed(*WORDS))
