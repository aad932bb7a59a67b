"""What each role of a run does when: spans of time in ``RUN/spans/ROLE.jsonl``, readable while the run goes.

A line is a span: ``name``, ``start`` and ``end`` (Unix seconds), ``count`` and ``busy`` where it stands for more than one piece
of work, and small fields. A line ``{"opened": …}`` is where a process took the role up, ``{"closed": …}`` where it left
in order. Recording is cheap enough for every decode step, and it can never stop a run.
"""

from __future__ import annotations

import atexit
import json
import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from penstock.core.files import append_to

SpanName = Literal["generate", "reward", "train", "label", "publish", "update", "wait", "evaluate", "save"]

FLUSH_SECONDS = 1.0
"""Longest time that a finished span stays in memory while others come."""
BUFFER = 4096
"""Most spans in memory."""
GAP = 0.02
"""Pause in seconds that :meth:`Spans.extend` bridges. The pause does not count as busy."""
CHUNK = 2 << 20
"""Bytes of a file after which its spans are joined more coarsely, doubled after each further such many bytes."""
FIRST_RESOLUTION = 1 / 64
"""Seconds within which spans of one name are joined once a file has grown by one ``CHUNK``."""

_BASE = time.time() - time.monotonic()


def now() -> float:
    """Unix seconds that never go backwards within a process."""
    return _BASE + time.monotonic()


@dataclass(slots=True)
class Span:
    """A piece of work, or several of one name that were joined: ``busy`` of its seconds were spent on ``count`` pieces."""

    name: str
    start: float
    end: float
    busy: float
    count: int = 1
    fields: dict[str, Any] = field(default_factory=dict)

    def join(self, later: Span) -> None:
        """Take a later span of the same name in: amounts add up, peaks are kept, of the rest the later value counts."""
        self.start, self.end = min(self.start, later.start), max(self.end, later.end)
        self.busy, self.count = self.busy + later.busy, self.count + later.count
        for name, value in later.fields.items():
            before = self.fields.get(name)
            if name == "tokens" and before is not None:
                value += before
            elif name == "in_flight" and before is not None:
                value = max(before, value)
            elif name == "lag" and before is not None:
                value = {lag: before.get(lag, 0) + value.get(lag, 0) for lag in [*before, *(set(value) - set(before))]}
            self.fields[name] = value

    def line(self) -> bytes:
        record: dict[str, Any] = {"name": self.name, "start": round(self.start, 6), "end": round(self.end, 6)}
        if self.count != 1 or self.busy != self.end - self.start:
            record |= {"busy": round(self.busy, 6), "count": self.count}
        return json.dumps(record | self.fields).encode() + b"\n"


@dataclass(slots=True)
class _Period:
    """Work of one name that overlaps itself: the time in which at least one piece is under way."""

    start: float = 0.0
    active: int = 0
    finished: int = 0
    peak: int = 0


class Spans:
    """Records what one role does; used from one thread.

    A process that goes on with a role appends to its file. Memory is bounded by ``BUFFER`` spans; a file grows with the
    logarithm of the run's time, because spans of one name are joined over longer and longer times. Where the file cannot
    be written (a full disk) the recording ends with a warning and the run goes on. A process that ends in order closes its
    files. Without a path nothing is recorded.
    """

    def __init__(self, path: Path | None = None, role: str = "", clock: Callable[[], float] = now, chunk: int = CHUNK) -> None:
        self.path, self.role, self.clock, self.chunk = path, role, clock, chunk
        self._open: dict[str, Span] = {}
        self._periods: dict[str, _Period] = {}
        self._lines: list[bytes] = []
        self._flushed = clock()
        self._resolution = 0.0
        self._process = os.getpid()
        self._file: Any = None
        self._size = 0
        if path is None:
            return
        try:
            self._file = append_to(path)
            self._size = self._file.tell()
        except OSError as error:
            self._give_up(error)
        opened = json.dumps({"opened": round(self._flushed, 6), "role": role, "process": self._process})
        atexit.register(self._at_exit)
        self._lines.append(opened.encode() + b"\n")
        self._write()

    @contextmanager
    def span(self, name: SpanName, **fields: Any) -> Iterator[None]:
        """Record the time spent inside the block, also where it raises."""
        start = self.clock()
        try:
            yield
        finally:
            self.add(name, start, self.clock(), **fields)

    @contextmanager
    def overlapping(self, name: SpanName) -> Iterator[None]:
        """Record the block as part of a period in which any number of such blocks are under way.

        A period's ``count`` is the number of blocks that ended in it, ``in_flight`` the most at once.
        """
        period = self._periods.setdefault(name, _Period())
        if not period.active:
            period.start = self.clock()
        period.active += 1
        period.peak = max(period.peak, period.active)
        try:
            yield
        finally:
            period.active -= 1
            period.finished += 1
            if not period.active or self.clock() - period.start >= FLUSH_SECONDS:
                self._cut(name, period)

    def add(self, name: SpanName, start: float, end: float, **fields: Any) -> None:
        """Record one piece of work. ``start`` and ``end`` come from :func:`now`."""
        self._take(Span(name, start, end, end - start, 1, fields), 0.0)

    def extend(self, name: SpanName, start: float, end: float, **fields: Any) -> None:
        """Record one of many short pieces that follow each other, such as decode steps: those with hardly a pause between
        them become one span."""
        self._take(Span(name, start, end, end - start, 1, fields), GAP)

    def flush(self) -> None:
        """Write everything that was recorded so far."""
        if self._file is None:
            return
        for name, period in self._periods.items():
            if period.active:
                self._cut(name, period, flush=False)
        self._lines += [span.line() for span in self._open.values()]
        self._open.clear()
        self._write()

    def close(self) -> None:
        """Write everything and the end of the role. What comes afterwards is dropped."""
        self.flush()
        self._lines.append(json.dumps({"closed": round(self.clock(), 6)}).encode() + b"\n")
        self._write()
        if self._file is not None:
            self._file.close()
            self._file = None
        atexit.unregister(self._at_exit)

    def _at_exit(self) -> None:
        if os.getpid() == self._process:  # a forked child leaves the file to its parent
            self.close()

    def _cut(self, name: str, period: _Period, flush: bool = True) -> None:
        """End a period here; what is still under way begins the next one."""
        end = self.clock()
        span = Span(name, period.start, end, end - period.start, period.finished, {"in_flight": period.peak})
        period.start, period.finished, period.peak = end, 0, period.active
        self._take(span, 0.0, flush)

    def _take(self, span: Span, gap: float, flush: bool = True) -> None:
        if self._file is None:
            return
        last = self._open.get(span.name)
        follows = last is not None and bool(gap) and span.start - last.end <= gap
        if last is not None and (follows or span.end - last.start <= self._resolution):
            last.join(span)
        else:
            if last is not None:
                self._lines.append(last.line())
            self._open[span.name] = span
        waited = span.end - self._flushed
        if flush and (waited >= max(FLUSH_SECONDS, self._resolution) or len(self._lines) >= BUFFER):
            self.flush()

    def _write(self) -> None:
        self._flushed = self.clock()
        text = b"".join(self._lines)
        self._lines.clear()
        if self._file is None or not text:
            return
        try:
            self._file.write(text)
        except OSError as error:
            self._give_up(error)
            return
        self._size += len(text)
        doublings = self._size // self.chunk
        self._resolution = FIRST_RESOLUTION * 2.0 ** (doublings - 1) if doublings else 0.0

    def _give_up(self, error: OSError) -> None:
        self._file = None
        warnings.warn(f"{self.path}: the timeline is not recorded any more: {error.strerror}", stacklevel=2)


NO_SPANS = Spans()
"""Records nothing: for code that runs without a run's folder."""


class Recorder:
    """The spans of all roles that one process carries out; without a folder nothing is recorded."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._roles: dict[str, Spans] = {}

    def role(self, name: str) -> Spans:
        """The spans of a role, such as ``learner`` or ``generator-0``; its file is made at the first call."""
        if self.folder is None:
            return NO_SPANS
        if name not in self._roles:
            self._roles[name] = Spans(self.folder / f"{name}.jsonl", name)
        return self._roles[name]

    def end(self, *names: str) -> None:
        """Write the end of roles that this process gives up, as at the end of a stage; those it never had are passed over."""
        for name in names:
            if name in self._roles:
                self._roles.pop(name).close()

    def flush(self) -> None:
        """Write what was recorded so far."""
        for spans in self._roles.values():
            spans.flush()

    def close(self) -> None:
        """Write the end of every role."""
        self.end(*self._roles)


NO_RECORDER = Recorder(None)
