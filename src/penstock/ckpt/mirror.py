"""A run's folder mirrored into an object store by a thread of its own, next to training, which it neither slows nor ends.

Below the store's URL a run lies under its name: what of the folder another machine needs to go on (:func:`is_mirrored`); each
checkpoint as ``checkpoints/NAME/ATTEMPT/``, its files first and its manifest last, so that it is there if the manifest is; the
models of finished stages in the same way; and ``attempts/``, whose newest claim says who may write
(:mod:`penstock.ckpt.lease`). Attempts never write the same object of a checkpoint; one that finds a newer one writes no more.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from penstock.ckpt import files
from penstock.ckpt.entries import Entry, Position, kept
from penstock.ckpt.lease import Lease, StoreClaims
from penstock.ckpt.objects import Objects
from penstock.ckpt.store import QUARANTINE, SCORES
from penstock.core.errors import CheckpointError, first_line
from penstock.core.files import write_json

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds between tries of a store that is away; each pause is twice the one before."""
FINAL_SECONDS, STOPPED_SECONDS = 120.0, 30.0
"""How long the end of a run waits for a store that is away; and that of one that was stopped or failed."""
LONGEST_UPLOAD = 3600.0
"""Seconds that the end of a run waits for a store that answers."""

IDENTITY = "store.json"
"""Which run this is: a random number, so that two runs of one name are not taken for one."""
MIRRORED = ("run.json", "pins.json", "summary.json", "events.jsonl", "spans/*", "schedule/*/*", f"checkpoints/{SCORES}")
_HELD = ".uploading-"
_COMMITTED = re.compile(rf"checkpoints/([^/]+)/(\d{{6}}(?:-\d{{3}})?)/{re.escape(files.MANIFEST)}")


def is_mirrored(name: str) -> bool:
    """Whether a file of a run's folder is mirrored as it is, besides its checkpoints and models."""
    parts = name.split("/")
    return not any(part in ("", "..") or part.startswith(".") for part in parts) and any(
        len(parts) == 1 + pattern.count("/") and fnmatch(name, pattern) for pattern in MIRRORED
    )


def committed(names: Mapping[str, int]) -> dict[str, list[str]]:
    """The checkpoints among objects, newest first, and of each the attempts that wrote it whole, the last one first."""
    found: dict[str, list[str]] = {}
    for match in filter(None, map(_COMMITTED.fullmatch, sorted(names, reverse=True))):
        if Position.of(match[1]) is not None:
            found.setdefault(match[1], []).append(match[2])
    return dict(sorted(found.items(), key=lambda entry: _order(entry[0]), reverse=True))


def _order(name: str) -> tuple[int, int]:
    position = Position.of(name)
    assert position is not None
    return position.order


class Mirror:
    """Uploads what of a run's ``folder`` is new whenever it is asked to. ``models``: the folder of each stage's model.

    Once started, :meth:`check` raises what must end the run; everything else that goes wrong is reported, and tried again.
    """

    def __init__(self, store: str, folder: Path, keep: int, models: Mapping[str, str]) -> None:
        self.objects = Objects(f"{store.rstrip('/')}/{folder.name}")
        self.folder, self.keep, self.models = folder, keep, models
        self.lease = Lease(StoreClaims(self.objects), say=lambda text: self.report("store waits", reason=text))
        self._claimed = False
        """Whether the run is held in the store, and what is there is known."""
        self._entries: dict[str, Entry] = {}
        self._uploaded: dict[str, bytes] = {}
        """Manifests in the store by folder."""
        self._sent: dict[str, tuple[int, int]] = {}
        """Size and time of files as they were when they were sent."""
        self._lost: CheckpointError | None = None
        self._away: tuple[float, str] | None = None
        """Since when the store cannot be reached, and why."""
        self._wanted = False
        self._asked, self._closing, self._given_up = threading.Event(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, name="mirror", daemon=True)

    def start(self, report: Callable[..., None]) -> None:
        """Begin; nothing is sent before :meth:`ask`."""
        self.report = report
        for left in self.folder.glob(f"checkpoints/{_HELD}*"):  # by a killed process
            shutil.rmtree(left)
        self._thread.start()

    def ask(self) -> None:
        """Upload what is new. Never waits."""
        self._wanted = True
        self._asked.set()

    def send(self) -> str:
        """Upload what is new, start to end; gives what is missing then, as :meth:`close` does."""
        self.start(lambda what, **fields: None)
        self.ask()
        return self.close(FINAL_SECONDS)

    def check(self) -> None:
        """Raises CheckpointError where this process may not write the run any more."""
        if (lost := self._lost or self.lease.lost) is not None:
            raise lost

    def close(self, seconds: float) -> str:
        """Upload the rest, with ``seconds`` for a store that is away; gives what is missing in it, and why, or nothing."""
        began = time.monotonic()
        self._closing.set()
        self._asked.set()
        while self._thread.is_alive() and time.monotonic() < began + LONGEST_UPLOAD:
            self._thread.join(0.05)
            if self._away is not None and time.monotonic() > max(began, self._away[0]) + seconds:
                break
        self._given_up.set()
        missing = self._missing() if self._wanted else []
        if self._lost is not None or not missing:
            return str(self._lost or "")
        why = self._away[1] if self._away else f"it took longer than {LONGEST_UPLOAD:.0f} s"
        return (
            f"{self.objects.url} lacks {', '.join(missing)} of this run ({why}); everything is in {self.folder}: once the "
            f"store can be reached, penstock train --resume {self.folder} uploads it"
        )

    # In the thread

    def _work(self) -> None:
        try:
            self._until_closed()
        finally:  # also where nobody waits any more, so that a later run of this process may send
            self.lease.close()

    def _until_closed(self) -> None:
        pause = FIRST_PAUSE
        while not self._given_up.is_set():
            self._asked.wait()
            self._asked.clear()
            last = self._closing.is_set()
            if not self._wanted:
                return
            try:
                self._upload()
            except CheckpointError as error:
                self._lost = error
                return
            except Exception as error:  # every file system has errors of its own
                self._failed(error)
                self._closing.wait(pause) if not last else time.sleep(FIRST_PAUSE)
                pause = min(2 * pause, LONGEST_PAUSE)
                self._asked.set()
                continue
            if self._away is not None:
                self.report("store reached", store=self.objects.url, after=round(time.monotonic() - self._away[0], 1))
            self._away, pause = None, FIRST_PAUSE
            if last:
                return

    def _failed(self, error: Exception) -> None:
        said = first_line(error)[:300]
        if self._away is None or self._away[1] != said:
            since = self._away[0] if self._away else time.monotonic()
            self._away = since, said
            self.report("store failed", store=self.objects.url, reason=said, behind=", ".join(self._missing()))

    def _upload(self) -> None:
        """Send what is new, until nothing is."""
        if not self._claimed:
            self._claim()
            self._claimed = True
        self.lease.check()
        while True:
            summary = self._send_models()
            new = self._new_checkpoints()  # the log that is sent now reaches at least as far as each of them
            settled = self._send_files(summary)
            if new:
                self._send_checkpoint(new[0])
                self._prune()
            elif settled:
                return

    def _send_models(self) -> bytes:
        """Send the models of the stages that the summary says are finished; gives that summary."""
        file = self.folder / "summary.json"
        summary = file.read_bytes() if file.exists() else b'{"stages": {}}'
        for name in (self.models[stage] for stage in json.loads(summary)["stages"]):
            if name not in self._uploaded and (self.folder / name).is_dir():
                self._send_folder(self.folder / name, name, files.manifest_of(self.folder / name))
        return summary

    def _send_files(self, summary: bytes) -> bool:
        """Send files as far as they are now (the log grows). False: a stage has ended since, and its model goes first."""
        settled = True
        for name, stamp in self._new_files().items():
            with open(self.folder / name, "rb") as file:
                content = file.read(stamp[0])
            if name == "summary.json" and content != summary:
                settled = False
                continue
            self.objects.write(name, content)
            self._sent[name] = stamp
        return settled

    def _new_files(self) -> dict[str, tuple[int, int]]:
        found = {}
        for path in (path for pattern in MIRRORED for path in sorted(self.folder.glob(pattern))):
            name, about = path.relative_to(self.folder).as_posix(), path.stat()
            if is_mirrored(name) and path.is_file() and self._sent.get(name) != (about.st_size, about.st_mtime_ns):
                found[name] = about.st_size, about.st_mtime_ns
        return found

    def _new_checkpoints(self) -> list[str]:
        """Checkpoints of the folder that the store lacks, the newest first."""
        new = []
        for path in self.folder.glob("checkpoints/stage-*"):
            try:
                sealed = (path / files.MANIFEST).read_bytes()
            except OSError:  # pruned in between, or damaged
                continue
            if Position.of(path.name) and self._uploaded.get(f"checkpoints/{path.name}") != sealed:
                new.append(path.name)
        return sorted(new, key=_order, reverse=True)

    def _missing(self) -> list[str]:
        return [*(f"checkpoint {name}" for name in self._new_checkpoints()), *self._new_files()]

    def _send_checkpoint(self, name: str) -> None:
        """Upload a checkpoint as it is now, also where it is pruned or replaced meanwhile."""
        path, held = self.folder / "checkpoints" / name, self.folder / "checkpoints" / f"{_HELD}{name}"
        try:
            held.mkdir()
            for file in path.iterdir():
                try:
                    os.link(file, held / file.name)
                except PermissionError:  # a file system without links
                    shutil.copy2(file, held / file.name)
            sealed = (held / files.MANIFEST).read_bytes()
            header = json.loads((held / files.HEADER).read_bytes())
            self._send_folder(held, f"checkpoints/{name}", sealed, self._attempt)
            self._entries[name] = _entry(name, header)
        except FileNotFoundError:
            if path.exists():
                raise
        finally:
            shutil.rmtree(held, ignore_errors=True)

    def _send_folder(self, folder: Path, name: str, manifest: bytes, attempt: str = "") -> None:
        """Files first, the manifest last, and it only while the run is ours."""
        target = f"{name}/{attempt}" if attempt else name
        self.objects.delete([f"{target}/{files.MANIFEST}"])
        for path in sorted(folder.iterdir()):
            if path.name != files.MANIFEST:
                self.objects.put(path, f"{target}/{path.name}")
        self.lease.check()
        self.objects.write(f"{target}/{files.MANIFEST}", manifest)
        self._uploaded[name] = manifest

    def _prune(self) -> None:
        """Delete what is not kept, and what attempts up to this one left half-sent; of each the manifest first."""
        rated = files.read_scores(self.folder / "checkpoints" / SCORES)
        entries = [_rated(entry, rated) for entry in sorted(self._entries.values(), key=lambda entry: entry.position.order)]
        staying, names = kept(entries, self.keep), self.objects.sizes("checkpoints")
        whole = {f"checkpoints/{name}/{writers[0]}" for name, writers in committed(names).items() if name in staying}
        doomed = [name for name in names if name.count("/") == 3 and name.rpartition("/")[0] not in whole]
        doomed = [name for name in doomed if name.split("/")[2] <= self._attempt]
        self.objects.delete(sorted(doomed, key=lambda name: not name.endswith(f"/{files.MANIFEST}")))
        self._entries = {name: entry for name, entry in self._entries.items() if name in staying}

    # Who writes

    @property
    def _attempt(self) -> str:
        """The name of this process's attempt, in the store's order."""
        return f"{self.lease.number:06d}"

    def _claim(self) -> None:
        """Hold the run in the store, and learn what it has.

        Raises:
            CheckpointError: another process holds it, or the store has another run of this name.
        """
        identity = self.folder / IDENTITY
        if not identity.exists():
            write_json(identity, {"run": secrets.token_hex(16)})
        own = identity.read_bytes()
        try:
            self.objects.write(IDENTITY, own, new=True)
        except FileExistsError:
            if self.objects.read(IDENTITY) != own:
                raise CheckpointError(
                    f"{self.objects.url}: another run of this name is in the store; go on with it by penstock train --resume "
                    f"{self.objects.url}, or choose another --name"
                ) from None
        if not self.lease.number:
            self.lease.take()
        self._learn(self.objects.sizes())

    def _learn(self, names: Mapping[str, int]) -> None:
        """Note what of checkpoints and models is in the store; what was damaged there is sent again once it is made again."""
        damaged = {path.name for path in self.folder.glob(f"checkpoints/{QUARANTINE}/*")}
        scores = json.loads(self.objects.read(f"checkpoints/{SCORES}")) if f"checkpoints/{SCORES}" in names else {}
        for name, writers in committed(names).items():
            if name not in damaged:
                folder = f"checkpoints/{name}/{writers[0]}"
                self._uploaded[f"checkpoints/{name}"] = self.objects.read(f"{folder}/{files.MANIFEST}")
                self._entries[name] = _rated(_entry(name, json.loads(self.objects.read(f"{folder}/{files.HEADER}"))), scores)
        for model in self.models.values():
            if f"{model}/{files.MANIFEST}" in names:
                self._uploaded[model] = self.objects.read(f"{model}/{files.MANIFEST}")


def _entry(name: str, header: Mapping[str, Any]) -> Entry:
    return Entry(Path(name), Position(*header["position"]), header["score"], header["good"], header["meta"])


def _rated(entry: Entry, scores: Mapping[str, float]) -> Entry:
    """An entry with the score that came after its checkpoint, if one did."""
    return Entry(entry.path, entry.position, scores.get(entry.path.name, entry.score), entry.good, entry.meta)
