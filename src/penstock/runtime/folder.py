"""A run's folder: ``run.json``, ``events.jsonl``, ``spans/``, ``summary.json``, ``checkpoints/``, ``model/`` and the report."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

from penstock.ckpt.lease import FolderClaims, Lease
from penstock.config.run import Run
from penstock.config.spec import difference, parse, plain
from penstock.core.errors import CheckpointError, SpecError
from penstock.core.files import write_json
from penstock.data.blobs import BLOBS
from penstock.data.resolve import LOCAL, load_modules


def free_folder(runs: Path, name: str, exact: bool) -> Path:
    """``runs/name``, numbered on where that is taken and the name was not chosen by the user."""
    folder, number = runs / name, 1
    while not exact and folder.exists():
        number += 1
        folder = runs / f"{name}-{number}"
    return folder


class RunFolder:
    """Paths of a run and the two small files that say what it is and what came of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.spec = path / "run.json"
        self.events = path / "events.jsonl"
        self.summary = path / "summary.json"
        self.checkpoints = path / "checkpoints"
        self.model = path / "model"
        self.spans = path / "spans"
        self.schedule = path / "schedule"
        self.blobs = path / BLOBS
        self.claims = FolderClaims(path)
        self._made: list[Path] = []
        """Folders that :meth:`begin` created, innermost first."""

    @property
    def way_on(self) -> str:
        """How to go on with the run, for messages; or that there is none."""
        return f"go on with: {self.resuming}" if self.spec.exists() else "nothing was begun"

    @property
    def resuming(self) -> str:
        """What goes on with the run: the command line, or with it the script whose rows or functions no other process has."""
        if not (local := sorted(set(re.findall(rf'"{LOCAL}([^"]*)"', self.spec.read_text("utf-8"))))):
            return f"penstock train --resume {self.path}"
        return (
            f'the same penstock.train(…, folder="{self.path}", resume=True), or the recipe: penstock train RECIPE --resume '
            f"{self.path}; for {', '.join(local)} are in that script (a file, or functions at its top level, are found without)"
        )

    def stage_model(self, run: Run, name: str) -> Path:
        """Where a stage's model goes: the last one to ``model``, those before it to ``models/NAME``."""
        return self.model if name == run.stages[-1].name else self.path / "models" / name

    def require_free(self) -> None:
        """Refuse a folder in which a run is.

        Raises:
            CheckpointError: a run is there already, so starting would overwrite it.
        """
        if self.spec.exists():
            raise CheckpointError(
                f"{self.path}: a run is there already; choose another --name or folder, or go on with it by {self.resuming}"
            )

    def begin(self, run: Run) -> Lease:
        """Create the folder for a new run and hold it as :meth:`hold` does; :meth:`undo` takes it back.

        Raises:
            CheckpointError: a run is there already, or the folder cannot be written.
        """
        self.require_free()
        self._made = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)  # samples, and what people said
            lease = self.hold()
            try:
                self.require_free()
                write_json(self.spec, plain(run))
            except BaseException:
                lease.close()
                raise
        except OSError as error:
            self.undo()
            raise CheckpointError(
                f"{self.path}: the run's folder cannot be written ({error.strerror}); choose another place with --runs"
            ) from error
        return lease

    def undo(self) -> None:
        """Remove what :meth:`begin` and a start that came to nothing have left."""
        if self.path in self._made:
            shutil.rmtree(self.path, ignore_errors=True)
        else:
            for file in (self.spec, self.events):
                with contextlib.suppress(OSError):
                    file.unlink(missing_ok=True)
            shutil.rmtree(self.claims.folder, ignore_errors=True)
        for parent in self._made:
            with contextlib.suppress(OSError):
                parent.rmdir()

    def read(self) -> Run:
        """The spec of the run in this folder.

        Raises:
            CheckpointError: there is no run, or its run.json is damaged.
        """
        import penstock.algos
        import penstock.control.league
        import penstock.envs.spec  # noqa: F401 - they register what a spec may name

        if not self.spec.exists():
            raise CheckpointError(f"{self.path}: no run.json here; this is not a run folder")
        try:
            values = json.loads(self.spec.read_text(encoding="utf-8"))
            modules = values.get("modules") if isinstance(values, dict) else ()
            if isinstance(modules, list) and all(isinstance(name, str) for name in modules):
                load_modules(modules)
            return parse(Run, values)
        except (ValueError, SpecError) as error:
            raise CheckpointError(f"{self.spec}: cannot be read: {error}") from error

    def require_same(self, run: Run) -> None:
        """Refuse to go on with another spec; the message shows every difference. How a learner is spread over processes may
        differ, since a checkpoint holds whole arrays, and so may who watches.

        Raises:
            CheckpointError: the specs differ.
        """
        found = difference(plain(self.read()), plain(run))
        lines = [line for line in found if not re.match(r"monitors\b|[^:]*\.learner\.strategy", line)]
        if lines:
            raise CheckpointError(
                f"{self.path}: the run was started with another spec ({'; '.join(lines)}); start a new run with another --name "
                f"or folder, or go on without changes by {self.resuming}"
            )

    def hold(self, patience: float = 0.0) -> Lease:
        """Hold the folder for this process until the lease is closed. Raises CheckpointError if another one trains in it and
        still does after ``patience`` seconds."""
        return Lease(self.claims, patience).take()

    def read_summary(self) -> dict[str, Any]:
        """What came of the run so far. Raises CheckpointError where the file is damaged."""
        if not self.summary.exists():
            return {"stages": {}}
        try:
            found = json.loads(self.summary.read_text(encoding="utf-8"))
        except ValueError as error:
            found = error
        if not isinstance(found, dict) or not isinstance(found.get("stages"), dict):
            raise CheckpointError(f"{self.summary}: cannot be read; remove it, and --resume goes on from the checkpoints")
        return found

    def finished(self, run: Run) -> dict[str, Any] | None:
        """The summary of a run all of whose stages are done; None for one that can go on."""
        summary = self.read_summary()
        done = all(stage.name in summary["stages"] and self.stage_model(run, stage.name).is_dir() for stage in run.stages)
        return summary if done and "headline" in summary else None
