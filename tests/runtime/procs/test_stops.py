"""Processes that stand still for a while: nothing is lost, and the run goes on."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from runs import ENVIRONMENT, PLAIN, RECIPES, Start, Undisturbed

ROLES = ("generator-0", "reward-0", "learner", "supervisor")


def test_a_run_whose_processes_stand_still_ends_as_if_nothing_had_happened(start: Start, undisturbed: Undisturbed) -> None:
    words = ("letters", "--steps", "16", "--delay", "0.02", "--hold", "60")
    run = start(*words)
    for number, name in enumerate(ROLES):
        run.until_step(2 + 3 * number)
        run.signal(name, signal.SIGSTOP)
        time.sleep(4)  # well below the silence after which a role is replaced
        run.signal(name, signal.SIGCONT)
    run.assert_ends(undisturbed(*words), 16)
    assert run.notes("role restarted") == []


def test_a_role_that_never_moves_again_is_replaced(start: Start, undisturbed: Undisturbed) -> None:
    words = ("letters", "--steps", "8", "--delay", "0.02")
    hasty = "import penstock.runtime.supervisor as s\ns.GAPS = 1\ns.Supervisor.__init__.__defaults__ = (6.0,)"
    run = start(*words, first=hasty)
    for number, name in enumerate(("generator-0", "reward-0")):
        run.until_step(1 + 2 * number)
        run.signal(name, signal.SIGSTOP)
        run.until(lambda name=name: any(note["role"] == name for note in run.notes("role silent")), what="replacement")
    run.assert_ends(undisturbed(*words), 8)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--resume", "runs/run"), "is at work in it"),
        ((f"{RECIPES}:letters", "--name", "run", "--runtime", "procs"), "runs/run: a run is there already"),
    ],
    ids=["resume", "the same name"],
)
def test_a_command_that_is_refused_leaves_the_run_in_peace(
    words: tuple[str, ...], said: str, start: Start, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """It starts no process, and takes nothing of what the run's processes share."""
    run = start("letters", "--steps", "12", "--hold", "20")
    run.until_step(2)
    command = [sys.executable, "-c", PLAIN, "train", *words]
    refused = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=120, check=False)
    assert (refused.returncode, said in refused.stderr) == (2, True), refused.stderr
    run.assert_ends(undisturbed("letters", "--steps", "12"), 12)
