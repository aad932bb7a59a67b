"""The runs of a folder: which there are, how far each is, and the index of those that are looked at."""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.observe.lanes import Lane, lanes_of
from penstock.ui import metrics
from penstock.ui.live.index import LogIndex, opened, parsed
from penstock.ui.text import clean
from penstock.web.refusals import Refusal

MOST_RUNS = 2000
"""Runs that a listing holds, those with the newest events first."""
INDEXED, INDEXED_BYTES = 24, 512 << 20
"""Runs whose index stays in memory, and what all of them may hold; the one that is looked at stays in any case."""
READ_AT_ONCE = 48 << 20
"""Bytes of a log that one request reads; the page asks again for the rest."""
END = 128 << 10
"""Bytes at a log's end that tell how far a run is."""
SMALL_FILE = 8 << 20
"""Bytes of run.json and summary.json at most."""
LARGEST_LANES = 64 << 20
"""Bytes of recorded spans that are drawn at most."""
LIVE_SECONDS = 120.0
"""A run whose log has grown within so many seconds counts as running."""
PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,79}")

Stamp = tuple[int, int, int]


@dataclass
class RunFiles:
    """One run: its folder, what is cached of it, and a lock, because the index is for one thread at a time."""

    id: str
    name: str
    folder: Path
    lock: threading.Lock = field(default_factory=threading.Lock)
    index: LogIndex | None = None
    _small: dict[str, tuple[Stamp, Any]] = field(default_factory=dict)

    @property
    def log(self) -> Path:
        return self.folder / "events.jsonl"

    def cached(self, key: str, paths: Iterable[Path], make: Callable[[], Any]) -> Any:
        """``make()``, again only when one of the files has changed."""
        stamp = tuple(stamp_of(path) for path in paths)
        known = self._small.get(key)
        if known is None or known[0] != stamp:
            known = self._small[key] = (stamp, make())  # type: ignore[assignment]
        return known[1]  # type: ignore[index]

    def spec(self) -> dict[str, Any]:
        """run.json; empty where it is missing or damaged."""
        path = self.folder / "run.json"
        found = dict(self.cached("run", [path], lambda: small_json(path)))
        return found | {"stages": found["stages"] if isinstance(found.get("stages"), list) else []} if found else {}

    def summary(self) -> dict[str, Any]:
        """summary.json; empty until the first stage has ended."""
        path = self.folder / "summary.json"
        return dict(self.cached("summary", [path], lambda: small_json(path)))

    def end(self) -> dict[str, Any]:
        """What the last events say."""
        return dict(self.cached("end", [self.log], lambda: end_of(self.log)))

    def drawn(self, draw: Callable[[Sequence[Lane]], Any]) -> Any:
        """``draw`` of what the roles recorded, again only when there is more. What is kept is the drawing, not the spans.

        Raises:
            Refusal: they recorded more than can be drawn.
        """
        folder = self.folder / "spans"
        found = [] if folder.is_symlink() else folder.glob("*.jsonl")
        files = sorted(path for path in found if path.is_file() and not path.is_symlink())
        if (size := sum(path.stat().st_size for path in files)) > LARGEST_LANES:
            raise Refusal(413, f"{size >> 20} MB of spans are more than the page draws; use penstock timeline {self.folder}")
        return self.cached("lanes", files, lambda: draw(lanes_of(files)))


def stamp_of(path: Path) -> Stamp:
    """Tells two states of a file apart."""
    try:
        found = os.stat(path, follow_symlinks=False)
    except OSError:
        return (0, 0, 0)
    return (found.st_ino, found.st_size, found.st_mtime_ns)


def small_json(path: Path) -> dict[str, Any]:
    """The object in a small file; an empty one where there is none."""
    with opened(path) as file:
        return parsed(file.read(SMALL_FILE)) if file is not None else {}


def end_of(log: Path) -> dict[str, Any]:
    """Stage, step, time, newest numbers and alarms, as far as the last lines of a log tell.

    Where samples are so long that the end holds no numbers, more of it is read.
    """
    found = ending([])
    with opened(log) as file:
        size = os.fstat(file.fileno()).st_size if file is not None else 0
        for reach in (END, 8 * END, 64 * END):
            if file is None or found["values"]:
                break
            file.seek(max(0, size - reach))
            found = ending(file.read(reach).split(b"\n")[1 if size > reach else 0 :])
            if reach >= size:
                break
    return found


def ending(lines: Iterable[bytes]) -> dict[str, Any]:
    """What some lines tell of a run's present state."""
    found: dict[str, Any] = {"stage": "", "step": 0, "time": None, "values": {}, "alarms": 0, "fatal": ""}
    for line in lines:
        event = parsed(line)
        kind, stage, step = event.get("kind"), event.get("stage"), event.get("step")
        if (when := metrics.moment(event.get("time"))) is not None:
            found["time"] = when
        if kind == "sentinel" and event.get("state") == "tripped":
            found["alarms"] += 1
            found["fatal"] = clean(event.get("sentinel", "")) if event.get("severity") == "fatal" else found["fatal"]
        if isinstance(stage, str) and stage and isinstance(step, int):
            if stage != found["stage"]:
                found |= {"stage": clean(stage), "step": 0, "values": {}}
            found["step"] = max(found["step"], step)
            if kind == "metrics":
                found["values"] |= metrics.numbers(event.get("values"))
                found["fatal"] = ""  # what stopped it has been mended, and it was resumed
    return found


class Runs:
    """Finds runs below a folder, itself or two levels deep, and gives each a name that only a listing can resolve."""

    def __init__(self, root: Path, now: Callable[[], float] = time.time) -> None:
        self.root, self.now = root, now
        self._known: dict[str, RunFiles] = {}
        self._indexed: OrderedDict[str, RunFiles] = OrderedDict()
        self._lock = threading.Lock()

    def scan(self) -> list[RunFiles]:
        """All runs there are now, those with the newest events first."""
        with self._lock:
            found = {}
            for folder in folders_of(self.root):
                run = self._run(folder)
                found[run.id] = run
            newest = sorted(found.values(), key=lambda run: (-stamp_of(run.log)[2], run.name))[:MOST_RUNS]
            self._known = {run.id: run for run in newest}
            return newest

    def _run(self, folder: Path) -> RunFiles:
        relative = folder.relative_to(self.root).as_posix() if folder != self.root else folder.resolve().name
        plain = PLAIN_NAME.fullmatch(relative)
        name = relative if plain else hashlib.blake2b(os.fsencode(relative), digest_size=8).hexdigest()
        known = self._known.get(name)
        return known if known is not None and known.folder == folder else RunFiles(name, clean(relative), folder)

    def find(self, name: str) -> RunFiles:
        """The run that a listing gave this name. Raises Refusal."""
        run = self._known.get(name) or {found.id: found for found in self.scan()}.get(name)
        if run is None or not (run.folder / "run.json").is_file():
            raise Refusal(404, f'there is no run "{name[:100]}" in {self.root}', code="not_found")
        return run

    def index(self, run: RunFiles) -> LogIndex:
        """The run's index, read on a little; hold ``run.lock`` while using it. Those that were not used for longest are
        forgotten where many are large."""
        with self._lock:
            index = run.index = run.index or LogIndex(run.log)
            self._indexed[run.id] = run
            self._indexed.move_to_end(run.id)
            held = sum(one.index.bytes for one in self._indexed.values() if one.index is not None)
            while len(self._indexed) > 1 and (len(self._indexed) > INDEXED or held > INDEXED_BYTES):
                oldest = self._indexed.popitem(last=False)[1]
                held -= oldest.index.bytes if oldest.index is not None else 0
                oldest.index = None
        index.refresh(READ_AT_ONCE)
        return index

    def listing(self) -> list[dict[str, Any]]:
        """A line for each run."""
        return [self.line(run) for run in self.scan()]

    def line(self, run: RunFiles) -> dict[str, Any]:
        """How far a run is and what it measured last; reads the end of its log and only if that has changed."""
        spec, summary, end = run.spec(), run.summary(), run.end()
        specs = [stage for stage in spec.get("stages") or [] if isinstance(stage, Mapping)]
        names = [str(stage.get("name")) for stage in specs]
        place = names.index(end["stage"]) if end["stage"] in names else -1
        return {
            "id": run.id,
            "name": run.name,
            "state": state_of(summary, end, self.now()),
            "headline": clean(summary.get("headline") or ""),
            "stage": end["stage"],
            "place": place + 1,
            "stages": len(names),
            "step": end["step"],
            "steps": metrics.count(specs[place].get("steps")) if place >= 0 else 0,
            "time": end["time"],
            "alarms": end["alarms"],
            "values": [
                {"label": metrics.shown(name).label, "value": metrics.value_of(name, end["values"][name])}
                for name in sorted(end["values"], key=metrics.order) if name in LISTED
            ],
            "seed": seed_of(spec),
            "family": family_of(spec),
        }  # fmt: skip


LISTED = ("reward/mean", "accuracy", "evaluation/reward", "evaluation/accuracy", "loss", "kl/reference")
"""Metrics that a listing shows."""


def state_of(summary: Mapping[str, Any], end: Mapping[str, Any], now: float) -> str:
    """``finished``, ``stopped`` by a sentinel, ``running`` while the log grows, else ``silent``."""
    if "headline" in summary:
        return "finished"
    if end["fatal"]:
        return "stopped"
    return "running" if end["time"] is not None and now - end["time"] < LIVE_SECONDS else "silent"


def seed_of(spec: Mapping[str, Any]) -> int | None:
    """A run's seed; None where there is none, or no whole number."""
    seed = spec.get("seed")
    return seed if isinstance(seed, int) and not isinstance(seed, bool) else None


def family_of(spec: Mapping[str, Any]) -> str:
    """Equal for runs that differ only in name and seed; empty where there is no spec."""
    if not spec:
        return ""
    rest = {key: value for key, value in spec.items() if key not in ("name", "seed")}
    return hashlib.blake2b(json.dumps(rest, sort_keys=True).encode(), digest_size=8).hexdigest()


def folders_of(root: Path) -> Iterable[Path]:
    """Run folders: the root itself, those in it, and those in its folders that are none. No links are followed."""
    if (root / "run.json").is_file():
        yield root
        return
    for folder in _within(root):
        if (folder / "run.json").is_file():
            yield folder
        else:
            yield from (inner for inner in _within(folder) if (inner / "run.json").is_file())


def _within(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return sorted(folder / entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []
