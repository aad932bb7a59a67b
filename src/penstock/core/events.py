"""The event log of a run: one JSON object a line in ``events.jsonl``, readable while it grows.

Kinds: ``metrics`` (numbers of a step), ``lifecycle`` (a stage starts, a checkpoint is durable, a fault), ``samples`` (a
few trajectories of a step) and ``sentinel`` (one tripped or cleared). Every line has ``kind``, ``time`` (Unix seconds),
``stage`` and ``step``.
"""

from __future__ import annotations

import base64
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from penstock.core.errors import DataError
from penstock.core.files import append_to, json_lines, replaced
from penstock.core.sentinels import Alarm

EventKind = Literal["metrics", "lifecycle", "samples", "sentinel"]
Event = dict[str, Any]


def _jsonable(value: Any) -> Any:
    """NaN and infinity become text, so that a line stays standard JSON; numpy scalars become numbers."""
    if isinstance(value, Mapping):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(item) for item in value]
    if hasattr(value, "item") and not isinstance(value, str | bytes):
        return _jsonable(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _line(event: Mapping[str, Any]) -> bytes:
    """An event as a line of the log. Half a character, which no file of text can hold, becomes a question mark."""
    return json.dumps(event, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace") + b"\n"


class EventLog:
    """Appends events to a file and passes each to the listeners (a progress display). Lines are written whole.

    A last line cut short by a kill is closed when the log is opened again. ``truncate_after`` drops the events of steps
    that a resume will run again, so that every step is in the log once.
    """

    def __init__(self, path: Path, listeners: Sequence[Callable[[Event], None]] = ()) -> None:
        self.path = path
        self.listeners = list(listeners)
        self.stage = ""
        self._file = append_to(path)

    def emit(self, kind: EventKind, step: int, **fields: Any) -> None:
        """Append one event."""
        event = {"kind": kind, "time": round(time.time(), 3), "stage": self.stage, "step": step, **_jsonable(fields)}
        self._file.write(_line(event))
        for listener in self.listeners:
            listener(event)

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        self.emit("metrics", step, values=dict(values))

    def lifecycle(self, step: int, what: str, **fields: Any) -> None:
        self.emit("lifecycle", step, what=what, **fields)

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        self.emit("samples", step, rows=[dict(row) for row in rows])

    def sentinel(self, alarm: Alarm) -> None:
        self.emit("sentinel", alarm.step, **alarm.fields())

    def truncate_after(self, stage: str, step: int, evaluation: int | None = None) -> None:
        """Drop events of ``stage`` beyond ``step``, which are about to happen again; lifecycle and fatal ones stay.

        ``evaluation`` is a step whose evaluation is about to happen again as well.
        """
        kept = [
            event
            for event in read_events(self.path)
            if event["kind"] == "lifecycle"
            or event.get("severity") == "fatal"
            or event["stage"] != stage
            or (event["step"] <= step and not (event["step"] == evaluation and _is_evaluation(event)))
        ]
        with replaced(self.path, binary=True) as out:
            out.writelines(map(_line, kept))
        self._file.close()
        self._file = append_to(self.path)

    def close(self) -> None:
        self._file.close()


def _is_evaluation(event: Event) -> bool:
    measured = any(name.startswith("evaluation/") for name in event.get("values", ()))
    return measured or any(row.get("held_out") for row in event.get("rows", ()))


def read_events(path: Path) -> Iterator[Event]:
    """The events of a log in order; a line cut short by a kill is passed over.

    Raises:
        DataError: the file does not exist.
    """
    if not path.exists():
        raise DataError(f"{path}: no event log here; is this a run folder?")
    for event in json_lines(path):
        if isinstance(event, dict) and "kind" in event:
            yield event


Kind = Literal["<i4", "<f4"]
"""Whole numbers or floats of 32 bits, little-endian."""


def packed(values: ArrayLike, kind: Kind) -> str:
    """One-dimensional numbers as text."""
    return base64.b64encode(np.asarray(values, kind).tobytes()).decode()


def unpacked(text: Any, kind: Kind) -> Sequence[Any]:
    """The numbers in a text of :func:`packed`. Raises ValueError for anything else."""
    if not isinstance(text, str):
        raise ValueError(f"{text!r:.40} is no packed text")
    data = base64.b64decode(text.encode("ascii"), validate=True)  # its errors, and those of other characters, are ValueErrors
    return np.frombuffer(data, kind).tolist()
