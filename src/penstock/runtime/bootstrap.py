"""What a process of a run must know: one line of JSON on its standard input."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from penstock.config.run import Online, Run
from penstock.config.spec import parse, plain
from penstock.data.resolve import load_modules

RANKS_LOST = 75
"""Exit code of a learner whose ranks are gone, and which goes on from its last checkpoint when it is started again."""

REFUSED = 2
"""Exit code of a process whose error would come again if it was started again."""


PATHS = ("folder", "base", "weights")


@dataclass(frozen=True)
class Bootstrap:
    """What the supervisor tells a process of a run: who it is, what the run is, and where the others are."""

    role: str
    """Name of the registered role."""
    name: str
    """Of this process, such as ``generator-0``."""
    run: Run
    folder: Path
    """Of the run."""
    base: Path
    """Where relative paths of the spec start from."""
    hub: str
    """Address of the hub."""
    token: str
    """The run's secret."""
    weights: Path
    """Folder that weights travel through."""
    threads: int
    """CPU threads of this process."""
    rank_threads: int = 0
    """CPU threads of a rank on another node; 0: the learner has none there."""
    stage: str = ""
    """The stage that the process works for; empty: the whole run."""
    resuming: bool = False
    """Whether the learner goes on with a run that is in ``folder``."""
    die_with_parent: bool = False
    """End at once when the parent does, because it is on another node and a successor may have started."""

    def plain(self) -> dict[str, Any]:
        """As plain JSON values."""
        return plain(self) | {name: str(getattr(self, name)) for name in PATHS}

    @classmethod
    def read(cls, line: bytes) -> Bootstrap:
        """What :meth:`plain` gave, from a line of JSON."""
        import penstock.algos
        import penstock.control.league
        import penstock.envs.spec  # noqa: F401 - they register what a spec may name

        values = json.loads(line)
        load_modules(values["run"]["modules"], Path(values["base"]))
        return parse(cls, values | {name: Path(values[name]) for name in PATHS})

    @property
    def online(self) -> Online:
        """The spec of the stage that the process works for."""
        return cast(Online, next(stage for stage in self.run.stages if stage.name == self.stage))

    def stage_start(self, stage: str) -> Path:
        """Folder of the model that a stage begins with, for the roles that need its shape and its tokenizer."""
        return self.folder / "roles" / stage
