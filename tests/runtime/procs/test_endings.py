"""However a run in processes is stopped, none of them is left, and ``--resume`` goes on to the same weights."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from runs import Start, Started, Undisturbed

WORDS = ("letters", "--steps", "12", "--delay", "0.02", "--hold", "44")


def assert_stops(run: Started, said: str) -> None:
    """The run ends soon, by the signal, in order."""
    assert run.wait(15) == 130, run.everything()
    assert said in run.text
    assert "penstock train --resume runs/run" in run.text
    assert "Traceback" not in run.text
    run.assert_clean()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_signal_finishes_the_step_and_saves(number: int, start: Start, undisturbed: Undisturbed) -> None:
    run = start(*WORDS)
    run.until_step(4)
    run.signal("supervisor", number)
    assert_stops(run, "everything is saved")
    start().assert_ends(undisturbed(*WORDS), 12)


def test_a_second_signal_stops_at_once(start: Start, undisturbed: Undisturbed) -> None:
    run = start(*WORDS)
    run.until_step(11)  # the next step waits for a reward that does not come
    run.signal("supervisor", signal.SIGINT)
    run.until(lambda: "finishing the step" in run.text, what="word of the first signal")
    run.signal("supervisor", signal.SIGINT)
    assert_stops(run, "stopped; go on with: penstock train --resume runs/run")
    start().assert_ends(undisturbed(*WORDS), 12)


def test_nothing_outlives_a_supervisor_that_is_killed(start: Start, undisturbed: Undisturbed) -> None:
    run = start(*WORDS)
    run.until_step(4)
    run.signal("supervisor", signal.SIGKILL)
    run.until_gone(15)
    run.assert_clean()
    start().assert_ends(undisturbed(*WORDS), 12)


def test_nothing_outlives_a_run_that_is_killed_whole(start: Start, undisturbed: Undisturbed) -> None:
    """Even what nobody was left to clear away: the next start does it."""
    run = start(*WORDS)
    run.until_step(4)
    run.kill_everyone()
    run.until_gone(15)
    start().assert_ends(undisturbed(*WORDS), 12)


def test_a_signal_at_any_moment_of_the_start_leaves_nothing(start: Start, tmp_path: Path) -> None:
    """Pairwise: the two signals take turns over the moments."""
    for place in range(12):
        number = (signal.SIGINT, signal.SIGTERM)[place % 2]
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


def test_a_signal_in_the_midst_of_a_save_stops_at_once(start: Start, undisturbed: Undisturbed) -> None:
    run = start(*WORDS, in_roles=INTERRUPTED)
    assert run.wait() == 130, run.everything()
    assert "Traceback" not in run.text
    run.assert_clean()
    start().assert_ends(undisturbed(*WORDS), 12)
