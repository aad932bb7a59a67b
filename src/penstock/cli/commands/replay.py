"""``penstock replay RUN``: train a recorded online stage again in one process and compare every step."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional

from penstock.cli.command import Command, called


@dataclass(kw_only=True)
class Replay(Command):
    """Train a recorded stage again, step by step, in one process, and compare.

    The stage follows the schedule that the run recorded: every engine's steps, every weight update at the step at which it
    came, every batch as it was, without regard to the clock, so that a breakpoint anywhere shows what happened. Each step's
    loss, gradient norm and reward are compared with the run's log, and the weights with its model. Nothing in the run's
    folder is changed.

    Exit code 0: all equal; 1: a step differs (it is named).
    """

    folder: Positional[Annotated[Path, called("RUN")]]
    """The run's folder, such as runs/NAME."""
    stage: Annotated[str, called("NAME")] = ""
    """An online stage (default: the last one)."""
    steps: Annotated[int, called("N")] = 0
    """Steps to replay (default: all that were recorded)."""

    def run(self) -> int:
        """Replay and compare; gives the exit code."""
        from penstock.runtime.compare import compare

        return int(compare(self.folder, self.stage, self.steps) > 0)
