"""Processes that stand still for a while: nothing is lost, and the run goes on."""

from __future__ import annotations

import signal
import time

from runs import Start, Undisturbed

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
