"""A run's folder: ``run.json``, ``events.jsonl``, ``summary.json``, ``checkpoints/``, ``model/`` and ``report.html``."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

from penstock.core.errors import CheckpointError, SpecError
from penstock.core.run import Run
from penstock.core.spec import difference, parse, plain


def write_json(path: Path, value: Any) -> None:
    """Replace a JSON file whole or not at all."""
    temporary = path.with_name(f".{path.name}.writing")
    with open(temporary, "w", encoding="utf-8") as out:
        json.dump(value, out, indent=2, ensure_ascii=False)
        out.write("\n")
        out.flush()
        os.fsync(out.fileno())
    os.replace(temporary, path)


class RunFolder:
    """Paths of a run and the two small files that say what it is and what came of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.spec = path / "run.json"
        self.events = path / "events.jsonl"
        self.summary = path / "summary.json"
        self.checkpoints = path / "checkpoints"
        self.model = path / "model"

    def stage_model(self, run: Run, name: str) -> Path:
        """Where a stage's model goes: the last one to ``model``, those before it to ``models/NAME``."""
        return self.model if name == run.stages[-1].name else self.path / "models" / name

    def begin(self, run: Run) -> None:
        """Create the folder for a new run.

        Raises:
            CheckpointError: a run is there already, so starting would overwrite it.
        """
        if self.spec.exists():
            raise CheckpointError(
                f"{self.path}: a run is there already; go on with --resume {self.path}, or choose another --name"
            )
        self.path.mkdir(parents=True, exist_ok=True)
        write_json(self.spec, plain(run))

    def read(self) -> Run:
        """The spec of the run in this folder.

        Raises:
            CheckpointError: there is no run, or its run.json is damaged.
        """
        if not self.spec.exists():
            raise CheckpointError(f"{self.path}: no run.json here; this is not a run folder")
        try:
            return parse(Run, json.loads(self.spec.read_text(encoding="utf-8")))
        except (ValueError, SpecError) as error:
            raise CheckpointError(f"{self.spec}: cannot be read: {error}") from error

    def require_same(self, run: Run) -> None:
        """Refuse to go on with another spec; the message shows every difference.

        Raises:
            CheckpointError: the specs differ.
        """
        lines = difference(plain(self.read()), plain(run))
        if lines:
            raise CheckpointError(
                f"{self.path}: the run was started with another spec ({'; '.join(lines)}); resume without changes, "
                f"or start a new run with --name"
            )

    def lock(self) -> Any:
        """Hold the folder for this process. Raises CheckpointError if another process trains in it."""
        handle = open(self.path / ".lock", "w")  # noqa: SIM115 - held until the process ends
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            handle.close()
            raise CheckpointError(f"{self.path}: another process is training in this folder") from error
        return handle

    def read_summary(self) -> dict[str, Any]:
        return json.loads(self.summary.read_text(encoding="utf-8")) if self.summary.exists() else {"stages": {}}
