"""What a stage finds around it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from penstock.config.keeping import RolesSpec
from penstock.config.run import Run
from penstock.core.spans import NO_RECORDER, Recorder
from penstock.runtime.bootstrap import Bootstrap


@dataclass(frozen=True)
class StageContext:
    """What a stage finds around it: where its spans go, what hears its notes (``report(what, **fields)``), what the learner
    knows of the run's other processes (None: there are none), the folder in which schedules are recorded, the run's
    folder, and whether the run was asked to stop."""

    recorder: Recorder = NO_RECORDER
    report: Callable[..., None] = lambda what, **fields: None
    bootstrap: Bootstrap | None = None
    schedule: Path | None = None
    folder: Path | None = None
    stopped: Callable[[], bool] = lambda: False


NO_CONTEXT = StageContext()


def in_one_process(run: Run) -> Run:
    """The run with all its roles in this process, where no update has to wait for the groups of another."""
    stages = tuple(stage.on_one_process() for stage in run.stages)
    return replace(run, stages=stages, runtime="local", roles=RolesSpec())
