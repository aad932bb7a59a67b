"""A run brought from an object store to a machine that has nothing of it, to go on there."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path

from penstock.ckpt import files
from penstock.ckpt.entries import Position
from penstock.ckpt.lease import FolderClaims, Lease
from penstock.ckpt.mirror import IDENTITY, committed, is_mirrored
from penstock.ckpt.objects import Objects
from penstock.ckpt.store import CheckpointStore
from penstock.core.errors import CheckpointError, blame
from penstock.core.events import Event, EventLog


def has_run(url: str) -> bool:
    """Whether a run is under ``url``. Raises CheckpointError where that cannot be known."""
    objects = Objects(url)
    with blame(CheckpointError, f"{objects.url}: the store cannot be read"):
        return "run.json" in objects.sizes()


def fetch_run(url: str, folder: Path, listeners: Sequence[Callable[[Event], None]] = ()) -> None:
    """Bring the run under ``url`` (the store's URL and the run's name) into ``folder``: its spec, log and finished models, and
    the newest checkpoint that is whole. Damaged ones are passed over, which the log says. Nothing is left where this fails.

    Raises:
        CheckpointError: ``folder`` exists, no run is there, the store cannot be read, no checkpoint of several is whole, or a
            finished model is damaged.
    """
    if (folder / "run.json").exists():
        raise CheckpointError(
            f"{folder}: a run is there already; go on with it by penstock train --resume {folder}, or choose other --runs"
        )
    objects, began = Objects(url), time.monotonic()
    coming = folder.with_name(f".{folder.name}.fetching")
    shutil.rmtree(coming, ignore_errors=True)
    with blame(CheckpointError, f"{objects.url}: the run cannot be read from the store"):
        try:
            names = objects.sizes()
            if "run.json" not in names:
                raise CheckpointError(f"{objects.url}: no run.json here; give the store's URL and the run's name")
            coming.mkdir(mode=0o700, parents=True)
            for name in filter(lambda name: is_mirrored(name) or name == IDENTITY, names):
                objects.get(name, coming / name)
            with closing(EventLog(coming / "events.jsonl", listeners)) as log:

                def report(what: str, **fields: object) -> None:
                    log.lifecycle(0, what, **fields)

                _fetch_models(objects, names, coming)
                found = _fetch_checkpoint(objects, names, CheckpointStore(coming / "checkpoints", report=report))
                report("run fetched", store=objects.url, checkpoint=found, seconds=round(time.monotonic() - began, 1))
            with suppress(OSError):
                folder.rmdir()  # an empty one gives way
            os.rename(coming, folder)
        finally:
            shutil.rmtree(coming, ignore_errors=True)


def catch_up(url: str, folder: Path) -> str:
    """Where the store is ahead of the run's folder, since the run went on elsewhere: bring what it has, the newest whole
    checkpoint last. Gives that checkpoint's name; empty where the folder has it all, or the store cannot be asked.

    Raises:
        CheckpointError: a process is at work in the folder; or as :func:`fetch_run`.
    """
    objects, coming = Objects(url), folder / ".fetching"
    try:
        names = objects.sizes()
        ours = (folder / IDENTITY).read_bytes() if IDENTITY in names else b""
        same = bool(ours) and objects.read(IDENTITY) == ours
    except Exception:  # every file system has errors of its own; the run says later that its store is away
        return ""
    if not same or not _is_ahead(names, folder):
        return ""
    with closing(Lease(FolderClaims(folder)).take()), blame(CheckpointError, f"{objects.url}: the run cannot be read from it"):
        if not _is_ahead(names, folder):  # by what was at work in it until now
            return ""
        try:
            _fetch_models(objects, names, coming)
            for name in filter(is_mirrored, names):
                objects.get(name, coming / name)
            for path in sorted(coming.rglob("*"), key=lambda path: path.name == "summary.json"):  # which says what is finished
                if path.is_file():
                    (folder / path.relative_to(coming)).parent.mkdir(parents=True, exist_ok=True)
                    os.replace(path, folder / path.relative_to(coming))
            found = _fetch_checkpoint(objects, names, CheckpointStore(coming / "checkpoints"))
            if found and not (folder / "checkpoints" / found).exists():
                os.rename(coming / "checkpoints" / found, folder / "checkpoints" / found)
            return found
        finally:
            shutil.rmtree(coming, ignore_errors=True)


def _is_ahead(names: Mapping[str, int], folder: Path) -> bool:
    """Whether the newest checkpoint among a store's objects is of a later step than the folder's."""

    def newest(checkpoints: Iterable[str]) -> tuple[int, int]:
        return max((position.order for position in map(Position.of, checkpoints) if position), default=(-1, -1))

    return newest(committed(names)) > newest(path.name for path in folder.glob("checkpoints/stage-*"))


def _fetch_folder(objects: Objects, names: Iterable[str], under: str, folder: Path) -> str | None:
    """Download one folder; gives why it is not what its manifest says, or None."""
    for name in (name for name in names if name.rpartition("/")[0] == under):
        with suppress(FileNotFoundError):  # then its manifest tells
            objects.get(name, folder / name.rpartition("/")[2])
    return files.problem_of(folder)


def _fetch_models(objects: Objects, names: Mapping[str, int], folder: Path) -> None:
    for sealed in [name for name in names if name.endswith(f"/{files.MANIFEST}") and name.split("/")[0] in ("model", "models")]:
        model = sealed.rpartition("/")[0]
        if ".." in model or (problem := _fetch_folder(objects, names, model, folder / model)):
            raise CheckpointError(f"{objects.url}/{model}: a finished model is damaged: {problem}; restore it from a backup")
        (folder / model / files.MANIFEST).unlink()


def _fetch_checkpoint(objects: Objects, names: Mapping[str, int], store: CheckpointStore) -> str:
    """Download the newest whole checkpoint; gives its name, or nothing where there never was one."""
    known = committed(names)
    for name, attempt in ((name, attempt) for name, attempts in known.items() for attempt in attempts):
        path = store.folder / name
        problem = _fetch_folder(objects, names, f"checkpoints/{name}/{attempt}", path)
        if problem is None:
            return name
        store.quarantine(path, problem)
    if known:
        raise CheckpointError(f"{objects.url}: {len(known)} checkpoints, and none is whole; restore one from a backup")
    return ""
