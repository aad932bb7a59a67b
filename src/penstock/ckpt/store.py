"""The checkpoint store: durable, verified, never silently lost.

A checkpoint is one folder named after its place in the run (``stage-00-sft-step-000050``). It is written under a temporary
name, made durable file by file, sealed by a manifest and renamed, so that under its final name it is whole or damaged by
the disk, never half written. It is valid when its manifest verifies. Damaged ones are moved to ``quarantine/``, never
deleted and never used.
"""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.ckpt import files
from penstock.ckpt.entries import Entry, Loaded, Pending, Position, kept
from penstock.ckpt.lease import Lease
from penstock.core.contracts import State
from penstock.core.errors import CheckpointError
from penstock.core.files import FULL, lock, write_json

LOCK_SECONDS = 600.0
"""How long an operation waits for another process's operation on the same folder."""

_TEMPORARY, _REPLACED, QUARANTINE, _LOCK = ".writing-", ".replaced-", "quarantine", ".lock"
SCORES = "scores.json"

Report = Callable[..., None]
"""``report(what, **fields)`` hears ``checkpoint`` or ``checkpoint quarantined``."""


@dataclass
class CheckpointStore:
    """Checkpoints of one run in ``folder``; keeps the ``keep`` newest, the best and the last good one.

    The best is the highest score within the newest stage that has any: scores of different stages do not compare.
    """

    folder: Path
    keep: int = 2
    report: Report | None = None
    lease: Lease | None = None
    """Checked before a checkpoint gets its name, so that a process whose run another one has taken writes none."""
    _verified: set[str] = field(default_factory=set)
    """Names that this process has written or read in full."""

    def __post_init__(self) -> None:
        self.folder = Path(self.folder)
        if self.keep < 1:
            raise CheckpointError(f"{self.folder}: keep={self.keep}; at least one checkpoint must stay")

    def save(
        self,
        position: Position,
        states: Mapping[str, State],
        *,
        score: float | None = None,
        good: bool = True,
        meta: dict[str, Any] | None = None,
    ) -> Path:
        """Make ``states`` durable at ``position``, then prune; on return the checkpoint survives a power cut.

        An earlier checkpoint at the same position is replaced. Until the new one is durable, every older one is untouched.

        Raises:
            CheckpointError: a state that cannot be kept exactly, a full disk (bytes needed and free), a failing write, a run
                that another process has taken.
        """
        return self.write(self.prepare(position, states, score=score, good=good, meta=meta))

    def prepare(
        self,
        position: Position,
        states: Mapping[str, State],
        *,
        score: float | None = None,
        good: bool = True,
        meta: dict[str, Any] | None = None,
    ) -> Pending:
        """Check what is to be saved. Raises CheckpointError for a state that cannot be kept exactly."""
        if Position.of(position.name) != position:
            raise CheckpointError(f'stage "{position.stage}", step {position.step} do not make a folder name')
        if score is not None and not math.isfinite(score):
            raise CheckpointError(f"{position.name}: score={score} is not a finite number; pass None where it is not known")
        header = {
            "position": list(position),
            "holders": list(states),
            "score": score,
            "good": good,
            "meta": dict(meta or {}),
        }
        files.check_json(header, f"{position.name}: checkpoint")
        return Pending(position, files.encode_json(header), files.prepare(states), score)

    def write(self, pending: Pending) -> Path:
        """Make what was prepared durable, then prune, as :meth:`save` does."""
        position, started = pending.position, time.monotonic()
        with self._locked():
            self._tidy()
            if position.name in (scores := self._scores()):  # of the weights that were here before
                del scores[position.name]
                self._write_scores(scores)
            size = self._write(position, pending.header, pending.states)
            self._verified.add(position.name)
            path = self.folder / position.name
            seconds = round(time.monotonic() - started, 3)
            self._tell("checkpoint", name=path.name, bytes=size, seconds=seconds, score=pending.score)
            self._prune(position)
        return path

    def rate(self, position: Position, score: float | None) -> None:
        """The weights of a position were measured after its checkpoint was written. Ignored where there is none (any more)."""
        if score is None or not math.isfinite(score) or not (self.folder / position.name).exists():
            return
        with self._locked():
            self._write_scores({**self._scores(), position.name: score})

    def _scores(self) -> dict[str, float]:
        """Scores that came after their checkpoints, by name; none where the file is damaged, which only costs the best mark."""
        return files.read_scores(self.folder / SCORES)

    def _write_scores(self, scores: Mapping[str, float]) -> None:
        write_json(self.folder / SCORES, {name: score for name, score in scores.items() if (self.folder / name).exists()})

    def load_newest(self) -> Loaded | None:
        """The newest valid checkpoint, or None where none was ever written. Damaged ones are quarantined on the way.

        Raises:
            CheckpointError: checkpoints exist or existed, and none is valid; or they cannot be read.
        """
        if not self.folder.exists():
            return None
        with self._locked():
            self._tidy()
            skipped: list[str] = []
            for path in reversed(self._paths()):
                if problem := self._examine(path):
                    skipped.append(self.quarantine(path, problem))
                    continue
                return self._load(path, skipped)
            quarantined = sorted((self.folder / QUARANTINE).glob("*"))
        if quarantined:
            raise CheckpointError(
                f"{self.folder}: {len(quarantined)} damaged checkpoints and no valid one"
                f"{' (' + '; '.join(skipped) + ')' if skipped else ''}; restore one from a backup, or move "
                f"{self.folder / QUARANTINE} away to start from the beginning"
            )
        return None

    def load_good(self, number: int, before: int, least: float | None = None) -> Loaded | None:
        """A verified checkpoint of the ``number``-th stage to go back to, None where there is none.

        The best, if its score is to be ``least`` or more; else the newest of a healthy run, from step ``before`` or earlier
        where there is one. The checkpoints stay as they are.
        """
        with self._locked():
            fit = [entry for entry in self.entries() if entry.position.number == number and entry.good]
            ranked = sorted(fit, key=lambda entry: (entry.position.step > before, -entry.position.step))
            if least is not None:
                known = [(entry.score, entry) for entry in ranked if entry.score is not None and entry.score >= least]
                ranked = [entry for _, entry in sorted(known, key=lambda one: (-one[0], -one[1].position.step))]
            return next((self._load(entry.path) for entry in ranked if self._examine(entry.path) is None), None)

    def _load(self, path: Path, warnings: Sequence[str] = ()) -> Loaded:
        """A checkpoint that was examined."""
        holders = json.loads((path / files.HEADER).read_bytes())["holders"]
        return Loaded(self._entry(path), {holder: files.read_state(path, holder) for holder in holders}, tuple(warnings))

    def entries(self) -> list[Entry]:
        """The checkpoints from oldest to newest by their headers, without verifying them; unreadable ones are left out."""
        found = []
        for path in self._paths():
            with suppress(OSError, ValueError, KeyError, TypeError):  # ``load_newest`` quarantines; a listing changes nothing
                found.append(self._entry(path))
        return found

    # Writing

    def _write(self, position: Position, header: bytes, prepared: Mapping[str, files.Prepared]) -> int:
        """Write, seal and rename; gives the size in bytes. On any failure the temporary folder is gone."""
        temporary, final = self.folder / f"{_TEMPORARY}{position.name}", self.folder / position.name
        needed = len(header) + sum(one.size for one in prepared.values())
        try:
            if shutil.disk_usage(self.folder).free < needed:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            temporary.mkdir()
            for holder, one in prepared.items():
                files.write_state(temporary, holder, one)
            files.write_bytes(temporary / files.HEADER, header)
            files.write_manifest(temporary)
            size = sum(path.stat().st_size for path in temporary.iterdir())
            if self.lease is not None:
                self.lease.check()
            self._rename(temporary, final)
        except OSError as error:
            shutil.rmtree(temporary, ignore_errors=True)
            raise self._write_error(position, error, needed) from error
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        return size

    def _rename(self, temporary: Path, final: Path) -> None:
        """Give the sealed folder its name. An old one of that name steps aside; ``_tidy`` brings it back after a kill."""
        aside = self.folder / f"{_REPLACED}{final.name}"
        if final.exists():
            os.rename(final, aside)
        os.rename(temporary, final)
        files.sync(self.folder)
        if aside.exists():
            shutil.rmtree(aside)

    def _write_error(self, position: Position, error: OSError, needed: int) -> CheckpointError:
        if error.errno not in FULL:
            return CheckpointError(f"{self.folder}: cannot write {position.name}: {error}; older checkpoints are untouched")
        free = shutil.disk_usage(self.folder).free
        return CheckpointError(
            f"{self.folder}: no space for {position.name}: needs {needed:,} bytes, {free:,} free ({error.strerror}); "
            f"make room or lower checkpoint.keep; older checkpoints are untouched"
        )

    # Keeping

    def _prune(self, saved: Position) -> None:
        """Delete what is not kept. Deletes nothing before every kept one is known to be valid."""
        while True:
            entries = self._readable()
            staying = kept(entries, self.keep) | {saved.name}
            damaged = [
                (e, problem) for e in entries if e.path.name in staying - self._verified and (problem := self._examine(e.path))
            ]
            if not damaged:
                break
            for entry, problem in damaged:
                self.quarantine(entry.path, problem)
        for entry in entries:
            if entry.path.name not in staying:
                self._discard(entry.path)

    def _readable(self) -> list[Entry]:
        """All entries; those whose header cannot be read are quarantined."""
        found = []
        for path in self._paths():
            try:
                found.append(self._entry(path))
            except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError) as error:
                self.quarantine(path, f"{files.HEADER} is damaged ({error})")
        return found

    def _discard(self, path: Path) -> None:
        """Delete a checkpoint; renamed first, so that a kill half-way does not leave a damaged one behind."""
        doomed = self.folder / f"{_TEMPORARY}{path.name}"
        os.rename(path, doomed)
        shutil.rmtree(doomed)
        self._verified.discard(path.name)

    def _tidy(self) -> None:
        """Remove what a killed process left half written and bring back what it had moved aside. Needs the lock."""
        for path in self.folder.glob(f"{_TEMPORARY}*"):
            shutil.rmtree(path)
        for aside in self.folder.glob(f"{_REPLACED}*"):
            final = self.folder / aside.name.removeprefix(_REPLACED)
            if final.exists():
                shutil.rmtree(aside)
            else:
                os.rename(aside, final)

    # Reading

    def _paths(self) -> list[Path]:
        """Folders with a checkpoint's name, oldest first."""
        if not self.folder.exists():
            return []
        named = [(position.order, path) for path in self.folder.iterdir() if (position := Position.of(path.name))]
        return [path for _, path in sorted(named)]

    def _entry(self, path: Path) -> Entry:
        header = json.loads((path / files.HEADER).read_bytes())
        score = self._scores().get(path.name, header["score"])
        return Entry(path, Position(*header["position"]), score, header["good"], header["meta"])

    def _examine(self, path: Path) -> str | None:
        """Why a checkpoint is not valid; None where it is. Raises CheckpointError where that cannot be known."""
        try:
            problem = files.problem_of(path)
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read: {error}; nothing was changed") from error
        if problem is None and self._entry(path).position.name != path.name:
            problem = f"it was saved as {self._entry(path).position.name}"
        if problem is None:
            self._verified.add(path.name)
        return problem

    def quarantine(self, path: Path, problem: str) -> str:
        """Move a damaged checkpoint away, say so, and give the sentence that was said. Raises OSError."""
        shelf = self.folder / QUARANTINE
        shelf.mkdir(exist_ok=True)
        target = shelf / path.name
        count = 1
        while target.exists():
            count += 1
            target = shelf / f"{path.name}.{count}"
        os.rename(path, target)
        self._verified.discard(path.name)
        text = f"checkpoint {path.name} was passed over: {problem}; moved to {target}"
        if self.report is None:
            warnings.warn(text, stacklevel=2)
        self._tell("checkpoint quarantined", name=path.name, moved_to=str(target), problem=problem)
        return text

    def _tell(self, what: str, **fields: Any) -> None:
        if self.report is not None:
            self.report(what, **fields)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the folder's lock; the system frees it when a process dies.

        Raises:
            CheckpointError: another process held it for LOCK_SECONDS, or has taken the run; or the folder cannot be used.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with open(self.folder / _LOCK, "w") as handle:
                deadline = time.monotonic() + LOCK_SECONDS
                while not lock(handle.fileno()):
                    if time.monotonic() > deadline:
                        held = f"another process has held {_LOCK} for {LOCK_SECONDS:.0f} s; end that one first"
                        raise CheckpointError(f"{self.folder}: {held}")
                    time.sleep(0.05)
                if self.lease is not None:
                    self.lease.check()
                yield
        except OSError as error:
            raise CheckpointError(f"{self.folder}: {error}; mend the folder and resume") from error
