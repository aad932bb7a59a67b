"""TensorBoard: event files in the run's folder, one subfolder a stage, written without TensorFlow or torch."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event as Record
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.plugins.text.metadata import create_summary_metadata
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from penstock.core.events import Event
from penstock.observe.monitors.monitor import At, Monitor, Step

STRING = 7
"""TensorFlow's number of the type of texts."""


class TensorBoard(Monitor):
    """``tensorboard`` or ``tensorboard:FOLDER``; by default ``RUN/tensorboard``."""

    def open(self) -> None:
        self.folder = Path(self.destination) / self.run.name if self.destination else self.run.folder / "tensorboard"
        self.writers: dict[str, EventFileWriter] = {}
        config = json.dumps(self.run.config, indent=1)
        self._write(At(next(iter(self.run.stages)), 0, 0, 0.0), text("config", f"```\n{config}\n```"))

    def named(self, at: At, name: str) -> str:
        """A stage is a folder of its own."""
        return name

    def _write(self, at: At, *values: Any) -> None:
        stage = at.stage or "run"
        if stage not in self.writers:
            self.writers[stage] = EventFileWriter(str(self.folder / stage), max_queue_size=100, flush_secs=1)
        self.writers[stage].add_event(Record(wall_time=at.time or time.time(), step=at.step, summary=Summary(value=values)))

    def metrics(self, steps: Sequence[Step]) -> None:
        for at, values in steps:
            self._write(at, *(Summary.Value(tag=name, simple_value=value) for name, value in values.items()))

    def samples(self, at: At, rows: Sequence[Mapping[str, str | float]]) -> None:
        lines = [list(rows[0]), ["---"] * len(rows[0]), *(row.values() for row in rows)] if rows else []
        table = "\n".join(f"| {' | '.join(map(_inside, line))} |" for line in lines)
        self._write(at, text("samples", table))

    def alarm(self, at: At, event: Event) -> None:
        self._write(at, text("alarms", f"{event['severity']}: {event['sentinel']}: {event['message']}"))

    def close(self, summary: Mapping[str, Any]) -> None:
        self._write(At("", 0, 0, 0.0), text("summary", str(summary.get("headline", "not finished"))))
        for writer in self.writers.values():
            writer.close()


def _inside(value: Any) -> str:
    """A cell of a Markdown table."""
    return str(value).replace("|", r"\|").replace("\n", " ⏎ ")


def text(tag: str, words: str) -> Any:
    """A text as TensorBoard's page of texts shows it."""
    size = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
    tensor = TensorProto(dtype=STRING, string_val=[words.encode("utf-8", "replace")], tensor_shape=size)
    return Summary.Value(tag=tag, tensor=tensor, metadata=create_summary_metadata(display_name=None, description=""))
