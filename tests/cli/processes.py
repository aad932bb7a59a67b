"""Commands in processes of their own, to be killed and signalled."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ENVIRONMENT = {
    **os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200", "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
}  # fmt: skip
PENSTOCK = "from armed import *\n{first}\nimport sys\nfrom penstock.cli.main import main\nsys.exit(main(sys.argv[1:]))"


class Server:
    """Starts ``penstock`` commands as processes."""

    def start(self, folder: Path, *words: str, first: str = "") -> Started:
        """Start a command in ``folder``; ``first`` is code that runs in the process before it (``armed`` is imported)."""
        return Started(folder, words, first)

    def run(self, folder: Path, *words: str, first: str = "") -> Started:
        """Run a command to its end."""
        started = self.start(folder, *words, first=first)
        started.wait()
        return started


class Started:
    """A running command; ``code`` is its exit code once it has ended (negative: the signal that killed it)."""

    def __init__(self, folder: Path, words: Sequence[str], first: str) -> None:
        self.out = folder / f"out-{time.monotonic_ns()}.txt"
        command = [sys.executable, "-c", PENSTOCK.format(first=first), *words]
        with self.out.open("wb") as out:
            self.process = subprocess.Popen(command, cwd=folder, env=ENVIRONMENT, stdout=out, stderr=out)
        self.pid = self.process.pid

    @property
    def code(self) -> int | None:
        return self.process.poll()

    @property
    def text(self) -> str:
        return self.out.read_text(encoding="utf-8")

    def until(self, ready: Callable[[], bool], seconds: float = 180.0) -> None:
        deadline = time.monotonic() + seconds
        while not ready():
            assert time.monotonic() < deadline, f"nothing happened in {seconds} s: {self.text}"
            time.sleep(0.005)

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.wait()

    def wait(self) -> int:
        return self.process.wait(timeout=500)


def events(folder: Path) -> list[dict[str, Any]]:
    """The whole lines of a run's event log; none where there is no log yet."""
    file = folder / "events.jsonl"
    lines = file.read_text(encoding="utf-8").split("\n") if file.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def steps_of(folder: Path, stage: str) -> int:
    """The last training step of a stage that the log tells of."""
    found = [e["step"] for e in events(folder) if e["kind"] == "metrics" and e["stage"] == stage and "loss" in e["values"]]
    return max(found, default=0)


TIMED = ("seconds/", "machine/", "tokens_per_second", "generation/tokens_per_second")


def metrics(folder: Path) -> list[tuple[str, int, dict[str, Any]]]:
    """(stage, step, values) of the metric events, without what a clock measured."""
    return [
        (event["stage"], event["step"], {k: v for k, v in event["values"].items() if not k.startswith(TIMED)})
        for event in events(folder)
        if event["kind"] == "metrics"
    ]


def outcome(folder: Path) -> dict[str, bytes]:
    """What must not depend on interruptions, byte by byte: every model, and the state of the newest checkpoint."""
    newest = sorted((folder / "checkpoints").glob("stage-*"))[-1]
    files: Sequence[Path] = [
        *sorted(folder.glob("models/*/model.safetensors")),
        folder / "model" / "model.safetensors",
        newest / "learner.safetensors",
        *(newest / f"{name}.json" for name in ("stream", "labeller") if (newest / f"{name}.json").exists()),
    ]
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}
