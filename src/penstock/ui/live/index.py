"""An event log by place: numbers as arrays, samples as byte offsets, read on from where the last look ended.

The file is opened for reading, for as long as a look takes, and never locked. Memory is 16 bytes a number and 24 a line of
samples; what samples say stays in the file.
"""

from __future__ import annotations

import json
import os
import re
import stat
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from penstock.core.events import Event
from penstock.ui.curves import Floats, Ints
from penstock.ui.metrics import moment, numbers

BLOCK = 1 << 20
"""Bytes that are read at once."""
LONGEST_LINE = 32 << 20
"""Bytes of a line; what is longer is passed over."""
FINGERPRINT = 64
"""Bytes before the place read last, which must be there again: otherwise it is another file."""
METRICS, STAGES, EVENTS = 1000, 200, 2000
"""Most metrics of a stage, stages of a run, and lifecycle and sentinel events that are kept; more are counted."""
SAMPLES = re.compile(rb'\{"kind": "samples", "time": ([\d.e+]+), "stage": ("(?:[^"\\]|\\.)*"), "step": (\d{1,15}), ')
"""How a line of samples begins, so that it need not be parsed."""


@dataclass
class Series:
    """One metric of one stage: the last value that was logged of each step, steps in order."""

    steps: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))

    def add(self, step: int, value: float) -> None:
        """Note a value; steps nearly always come in order."""
        if not self.steps or step > self.steps[-1]:
            self.steps.append(step)
            self.values.append(value)
            return
        place = bisect_left(self.steps, step)
        if self.steps[place] == step:
            self.values[place] = value
        else:
            self.steps.insert(place, step)
            self.values.insert(place, value)

    def columns(self) -> tuple[Ints, Floats]:
        """Steps and values as arrays that do not change when the index reads on."""
        return np.array(self.steps, np.int64), np.array(self.values, np.float64)


@dataclass
class StageIndex:
    """What the log holds of one stage. Times are Unix seconds."""

    name: str
    done: int = 0
    first: float | None = None
    last: float | None = None
    series: dict[str, Series] = field(default_factory=dict)
    alarms: list[Event] = field(default_factory=list)
    steps: array[int] = field(default_factory=lambda: array("q"))
    """Steps with samples, in order; one is there twice where it has two lines."""
    offsets: array[int] = field(default_factory=lambda: array("q"))
    lengths: array[int] = field(default_factory=lambda: array("q"))

    def sampled(self) -> list[int]:
        """Steps with samples, each once."""
        return list(dict.fromkeys(self.steps))

    def note_samples(self, step: int, offset: int, length: int) -> None:
        place = bisect_right(self.steps, step)
        for column, value in ((self.steps, step), (self.offsets, offset), (self.lengths, length)):
            column.insert(place, value)

    def lines(self, step: int) -> list[tuple[int, int]]:
        """(offset, length) of a step's lines of samples."""
        places = range(bisect_left(self.steps, step), bisect_right(self.steps, step))
        return [(self.offsets[place], self.lengths[place]) for place in places]

    def at(self, time: float) -> None:
        self.first, self.last = (time if self.first is None else self.first), time


class LogIndex:
    """The index of one file; call :meth:`refresh` to read on. For one thread at a time.

    ``changes`` grows whenever something new is known; ``generation`` whenever the file turned out to be another (a resume
    writes a shorter log in its place) and everything was read again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.changes = 0
        self.generation = 0
        self._forget()

    def _forget(self) -> None:
        self.stages: dict[str, StageIndex] = {}
        self.bytes = 0
        """About what the numbers and the places of samples take."""
        self.lifecycle: list[Event] = []
        self.left_out = 0
        self.offset = self.size = 0
        self._file: tuple[int, int] | None = None
        self._tail = b""
        self._skipping = False

    @property
    def complete(self) -> bool:
        """Whether everything that was in the file at the last look has been read, but for a line that is being written."""
        return self.size - self.offset < BLOCK

    def refresh(self, budget: int = 1 << 62) -> None:
        """Read on, at most ``budget`` bytes and the rest of a line. A missing file is empty."""
        with opened(self.path) as file:
            if file is None:
                if self._file is not None:
                    self._start_over()
                return
            status = os.fstat(file.fileno())
            identity = (status.st_dev, status.st_ino)
            if self._file is not None and not self._same(file, identity, status.st_size):
                self._start_over()
            self._file, self.size = identity, status.st_size
            file.seek(self.offset)
            self._read(file, budget)

    def rows(self, stage: str, step: int) -> list[Any]:
        """The samples of a step, evaluated ones included, as the log holds them."""
        known = self.stages.get(stage)
        found: list[Any] = []
        for _, line in self._lines(known.lines(step) if known else []):
            rows = parsed(line).get("rows")
            found += rows if isinstance(rows, list) else []
        return found

    def steps_with(self, stage: str, text: bytes) -> list[int]:
        """Steps whose lines of samples hold some bytes; reads all of them, which is as quick as the disk."""
        known = self.stages.get(stage)
        if known is None:
            return []
        places = list(zip(known.offsets, known.lengths, strict=True))
        return [known.steps[place] for place, line in self._lines(places) if text in line]

    def _lines(self, places: list[tuple[int, int]]) -> Iterator[tuple[int, bytes]]:
        with opened(self.path) as file:
            if file is None or not self._same(file, _identity(file), os.fstat(file.fileno()).st_size):
                return
            for place, (offset, length) in enumerate(places):
                file.seek(offset)
                yield place, file.read(length)

    def _start_over(self) -> None:
        self._forget()
        self.generation += 1

    def _same(self, file: BinaryIO, identity: tuple[int, int], size: int) -> bool:
        """Whether the file is the one that was read: the same inode, not shorter, the same bytes where reading ended."""
        if identity != self._file or size < self.offset:
            return False
        file.seek(self.offset - len(self._tail))
        return file.read(len(self._tail)) == self._tail

    def _read(self, file: BinaryIO, budget: int) -> None:
        rest, taken = b"", 0
        while taken < budget:
            block = file.read(BLOCK)
            if not block:
                break
            taken += len(block)
            *lines, rest = (rest + block).split(b"\n")
            for line in lines:
                self._take(line)
                self.offset += len(line) + 1
                self._tail = (self._tail + line + b"\n")[-FINGERPRINT:]
            if len(rest) > LONGEST_LINE:  # what has come of it is passed over, and what will come up to its end
                self.offset += len(rest)
                self._tail, rest, self._skipping = rest[-FINGERPRINT:], b"", True

    def _take(self, line: bytes) -> None:
        if self._skipping:
            self._skipping = False
            return
        if (head := SAMPLES.match(line)) is not None:
            name = parsed(b'{"name": ' + head[2] + b"}").get("name")
            if name:
                self._samples(name, int(head[3]), moment(head[1].decode()), len(line))
            return
        event = parsed(line)
        if "kind" in event:
            self._event(event, len(line))

    def _samples(self, stage: str, step: int, time: float | None, length: int) -> None:
        if (known := self._stage(stage)) is not None:
            known.note_samples(step, self.offset, length)
            self.bytes += 24
            if time is not None:
                known.at(time)
            self.changes += 1

    def _stage(self, name: str) -> StageIndex | None:
        if name not in self.stages and len(self.stages) >= STAGES:
            self.left_out += 1
            return None
        return self.stages.setdefault(name, StageIndex(name))

    def _event(self, event: Event, length: int) -> None:
        """Sort one event in; as the report does, what has no stage or step counts only as lifecycle."""
        name, step, time = str(event.get("stage") or ""), event.get("step"), moment(event.get("time"))
        self.changes += 1
        if event["kind"] == "lifecycle":
            self._keep(self.lifecycle, event)
        if not name or not isinstance(step, int) or isinstance(step, bool) or not 0 <= step < 1 << 50:
            return
        if event["kind"] == "samples":
            self._samples(name, step, time, length)
            return
        stage = self._stage(name)
        if stage is None:
            return
        if time is not None:
            stage.at(time)
        if event["kind"] == "metrics":
            stage.done = max(stage.done, step)
            for metric, value in numbers(event.get("values")).items():
                if metric in stage.series or len(stage.series) < METRICS:
                    stage.series.setdefault(metric, Series()).add(step, value)
                    self.bytes += 16
                else:
                    self.left_out += 1
        elif event["kind"] == "sentinel":
            self._keep(stage.alarms, event)

    def _keep(self, events: list[Event], event: Event) -> None:
        if len(events) < EVENTS:
            events.append(event)
        else:
            self.left_out += 1


def parsed(line: bytes) -> dict[str, Any]:
    """The object on a line; an empty one where there is none."""
    try:
        event = json.loads(line.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return {}
    return event if isinstance(event, dict) else {}


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO | None]:
    """A regular file to read, or None where there is none; never waits (a pipe) and never follows a link at its end."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        yield None
        return
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        yield None
        return
    with open(handle, "rb") as file:
        yield file


def _identity(file: BinaryIO) -> tuple[int, int]:
    status = os.fstat(file.fileno())
    return status.st_dev, status.st_ino
