"""What a monitor is: a listener that opens its service at the first step, takes what happens, and closes at the run's end.

All of it happens in the thread that the run gives each listener, which hands over what has happened every few seconds, so a
service that is slow, gone or wrong costs the run nothing: what a monitor raises becomes one warning. Numbers of many steps go
out together, since what a service costs is mostly the call. Secrets come from the environment variables that its library
reads.
"""

from __future__ import annotations

import json
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.config.run import Run
from penstock.config.spec import plain
from penstock.core.events import Event
from penstock.core.files import write_json

RETRY, LONGEST = 15.0, 900.0
"""Seconds until a service that could not be reached is tried again: at first, twice as long each time, and at most."""
TEXT = 2000
"""Characters of a sample's text that are sent."""
ROWS = 32
"""Samples of a step that are sent."""
PAUSE = 30.0
"""Seconds after which samples are sent again; those of evaluations always are. A table costs services far more than numbers."""
ALL, SPACING = 200, 5.0
"""Where a service is sent fewer steps: so many of a stage are, and of later ones the newest numbers every so many seconds."""
SECRET = re.compile(r"secret|passw|credential|authorization|api_?key|(^|_)token$", re.IGNORECASE)


@dataclass(frozen=True)
class Watched:
    """The run as its monitors know it."""

    name: str
    folder: Path
    config: Mapping[str, Any]
    """The spec as plain values, without secrets."""
    stages: Mapping[str, int]
    """Steps of the run before each stage."""
    samples: Mapping[str, int]
    """Samples (for offline stages, units) that a step of each stage trains on."""
    facts: Mapping[str, str]
    """The little that a label can hold: the run's name, stages, seed and runtime."""


@dataclass(frozen=True)
class At:
    """Where something happened: a stage (empty: the run), its step, the same counted over all stages, and Unix seconds."""

    stage: str
    step: int
    total: int
    time: float


Step = tuple[At, Mapping[str, float]]
"""Numbers, and of which step."""


def merged(steps: Iterable[Step], key: Callable[[At, Mapping[str, float]], Any]) -> list[Step]:
    """Steps with the same key as one: the place of the last of them, and of each number the newest."""
    found: dict[Any, tuple[At, dict[str, float]]] = {}
    for at, values in steps:
        same = key(at, values)
        before = found[same][1] if same in found else {}
        before.update(values)
        found[same] = (at, before)
    return list(found.values())


def _sent_as_one(at: At, values: Mapping[str, float]) -> Any:
    """What steps have in common of which only the newest numbers are sent. Evaluations have their own place."""
    alone = at.step <= ALL or any("evaluation/" in name for name in values)
    return at if alone else (at.stage, at.time // SPACING)


def watched(run: Run, folder: Path) -> Watched:
    """A run and its folder, for monitors."""
    config = without_secrets(plain(run))
    stages, samples, steps = dict[str, int](), dict[str, int](), 0
    for stage in config["stages"]:
        stages[stage["name"]], samples[stage["name"]] = steps, stage.get("batch", 0) * stage.get("samples", 1)
        steps += stage.get("steps", 0)
    facts = {"run": folder.name, "stages": " ".join(stages), "seed": str(run.seed), "runtime": run.runtime}
    return Watched(folder.name, folder, config, stages, samples, facts)


def without_secrets(values: Any) -> Any:
    """Plain values in which a text under a secret's name is replaced by ``***``; a spec holds no address with a password."""
    if isinstance(values, Mapping):
        return {
            key: "***" if isinstance(value, str) and value and SECRET.search(str(key)) else without_secrets(value)
            for key, value in values.items()
        }
    return [without_secrets(value) for value in values] if isinstance(values, list | tuple) else values


def leaves(values: Any, before: str = "") -> dict[str, Any]:
    """The plain values in nested ones by their dotted names."""
    if isinstance(values, Mapping):
        pairs: Any = values.items()
    elif isinstance(values, list | tuple):
        pairs = enumerate(values)
    else:
        return {before: values}
    return {name: leaf for key, value in pairs for name, leaf in leaves(value, f"{before}.{key}".lstrip(".")).items()}


class Monitor(ABC):
    """Base of the monitors. ``destination`` is what follows the name in ``Run.monitors``; empty: the usual one."""

    spaced = False
    """Whether later steps are sent as :data:`SPACING` says, because the service keeps each number and that costs."""

    def __init__(self, run: Watched, name: str, destination: str) -> None:
        """Cheap; anything slow belongs in :meth:`open`. Raises SpecError where the run cannot begin like this."""
        self.run, self.name, self.destination = run, name, destination
        self._opened, self._sampled = False, float("-inf")
        self._again, self._wait = 0.0, RETRY
        self._steps: list[Step] = []

    def __repr__(self) -> str:
        return self.name

    @abstractmethod
    def open(self) -> None:
        """Reach the service and give it the run's config."""

    @abstractmethod
    def metrics(self, steps: Sequence[Step]) -> None:
        """Numbers of all steps since the last call."""

    def samples(self, at: At, rows: Sequence[Mapping[str, str | float]]) -> None:
        """A few samples of a step: ``prompt``, ``text``, ``reward`` …, all rows with the same columns."""
        return None

    @abstractmethod
    def alarm(self, at: At, event: Event) -> None:
        """A sentinel tripped."""

    def lifecycle(self, at: At, event: Event) -> None:
        """A stage began, a checkpoint is durable …: ``what``."""
        return None

    def close(self, summary: Mapping[str, Any]) -> None:
        """The run has ended, finished where ``summary`` holds a ``headline``. Called if :meth:`open` had succeeded."""
        return None

    def ended(self) -> None:
        """There are no more events: the run's end, or its start failed."""
        if self._opened:
            path = self.run.folder / "summary.json"
            self.close(json.loads(path.read_text(encoding="utf-8")) if path.exists() else {})

    def __call__(self, event: Event) -> None:
        """Take an event. The service is opened at the first that shows that a stage is under way."""
        kind = event["kind"]
        if time.monotonic() < self._again or (kind == "lifecycle" and not self._opened):
            return
        if not self._opened:
            self._reach(self.open)
            self._opened = True
        at = At(event["stage"], event["step"], self.run.stages.get(event["stage"], 0) + event["step"], event["time"])
        if kind == "metrics":
            self._steps.append((at, {self.named(at, name): float(value) for name, value in event["values"].items()}))
        elif kind == "samples" and (
            time.monotonic() - self._sampled >= PAUSE or any(row.get("held_out") for row in event["rows"])
        ):
            self._sampled = time.monotonic()
            self.samples(at, table(event["rows"]))
        elif kind == "sentinel" and event.get("state") != "cleared":
            self.alarm(at, event)
        elif kind == "lifecycle":
            self.lifecycle(at, event)

    def flush(self) -> None:
        """Give the service the numbers that have come since the last time; where that fails, they are lost."""
        steps, self._steps = self._steps, []
        if steps:
            self._reach(lambda: self.metrics(merged(steps, _sent_as_one) if self.spaced else steps))

    def _reach(self, call: Callable[[], None]) -> None:
        """Call the service; one that cannot be reached is left alone for a while, longer each time."""
        try:
            call()
        except Exception:
            self._again, self._wait = time.monotonic() + self._wait, min(2 * self._wait, LONGEST)
            raise
        self._wait = RETRY

    def named(self, at: At, name: str) -> str:
        """What a metric is called: in a run of several stages, whose losses are not one curve, the stage goes first."""
        return f"{at.stage}/{name}" if len(self.run.stages) > 1 and not name.startswith("machine/") else name

    def kept(self, made: Callable[[], str]) -> str:
        """The service's name of this run, which ``made`` gives at first; kept in the run's folder, so that a resume goes on
        there."""
        path = self.run.folder / "monitors" / f"{self.name}.json"
        if path.exists():
            return str(json.loads(path.read_text(encoding="utf-8")))
        path.parent.mkdir(exist_ok=True)
        write_json(path, found := made())
        return found


COLUMNS = ("prompt", "text", "reward", "length", "finish", "error", "version", "held_out")


def table(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, str | float]]:
    """Samples of a step, at most so many and so long, with the same columns."""
    found = []
    for row in rows[:ROWS]:
        numbers = {f"reward/{name}": value for name, value in dict(row.get("rewards") or {}).items()}
        found.append({**{name: row.get(name) for name in COLUMNS}, **numbers})
    names = list(dict.fromkeys(name for row in found for name in row))
    return [{name: cell(row.get(name)) for name in names} for row in found]


def cell(value: Any) -> str | float:
    """A value as a table holds it: a number or a text that is not too long."""
    if isinstance(value, bool | int | float):
        return float(value)
    return "" if value is None else str(value)[:TEXT]
