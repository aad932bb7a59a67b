"""What a stage finds around it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from penstock.config.keeping import RolesSpec
from penstock.config.run import Online, Run
from penstock.core.spans import NO_RECORDER, Recorder

AGAIN = 75
"""Exit code of a learner whose ranks are gone, and which goes on from its last checkpoint when it is started again."""


@dataclass(frozen=True)
class Processes:
    """What the learner knows of the run's other processes: where the hub is, where weights and models go through."""

    hub: Mapping[str, str]
    weights: Path
    folder: Path
    threads: int

    def handed(self, stage: str) -> Path:
        """The folder of the model that a stage begins with, for the roles that need its shape and its tokenizer."""
        return self.folder / "roles" / stage


@dataclass(frozen=True)
class Around:
    """What a stage finds around it: where its spans go, what hears its notes (``report(what, **fields)``), the other
    processes of ``runtime="procs"``, the folder in which schedules are recorded, the run's folder, and whether the run was
    asked to stop."""

    recorder: Recorder = NO_RECORDER
    report: Callable[..., None] = lambda what, **fields: None
    processes: Processes | None = None
    schedule: Path | None = None
    folder: Path | None = None
    stopped: Callable[[], bool] = lambda: False


NOTHING_AROUND = Around()


def alone(run: Run) -> Run:
    """The run with all its roles in this process, where no update has to wait for the groups of another."""
    stages = tuple(
        replace(stage, kv="keep") if isinstance(stage, Online) and stage.kv == "drain" else stage for stage in run.stages
    )
    return replace(run, stages=stages, runtime="local", roles=RolesSpec())
