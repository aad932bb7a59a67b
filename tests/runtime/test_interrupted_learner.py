"""A learner that a signal interrupts before it is in a session."""

import signal
import subprocess
import sys


def test_a_learner_that_is_interrupted_outside_of_a_session_ends_by_the_signal() -> None:
    """So that its supervisor says that the run was stopped, and not that the learner failed."""
    code = """
import types
import penstock.runtime.role as role
import penstock.runtime.roles.learner as learner

def interrupted(bootstrap):
    raise KeyboardInterrupt

learner.train = interrupted
role._first_line = lambda: b""
role._end_with_parent = lambda at_once: None
role.Bootstrap.read = lambda line: types.SimpleNamespace(role="learner", die_with_parent=False)
role.main()
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == -signal.SIGTERM, ended.stderr
    assert ended.stderr == ""
