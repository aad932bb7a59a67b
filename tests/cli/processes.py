"""Runs in processes of their own, to be killed and signalled: a server imports once and forks one for each request."""

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

SERVER = """
import importlib, json, os, signal, sys
from penstock.cli.main import main
import penstock.runtime.session, penstock.cli.commands.train, penstock.ui.report, penstock.ui.progress
real, replies = sys.stdin, os.dup(1)

def arm(place, count, action=signal.SIGKILL):
    "When the function at MODULE:NAME is about to be called for the count-th time: send this process a signal, or call."
    module, _, name = place.partition(":")
    owner, *path = importlib.import_module(module), *name.split(".")
    for part in path[:-1]:
        owner = getattr(owner, part)
    function, calls = getattr(owner, path[-1]), [0]
    def armed(*arguments, **more):
        calls[0] += 1
        if calls[0] == count:
            action() if callable(action) else os.kill(os.getpid(), action)
        return function(*arguments, **more)
    setattr(owner, path[-1], armed)

for line in real:
    asked = json.loads(line)
    if "wait" in asked:
        answer = os.waitstatus_to_exitcode(os.waitpid(asked["wait"], 0)[1])
    else:
        answer = os.fork()
        if answer == 0:
            code = 70
            try:
                out = os.open(asked["out"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                os.dup2(out, 1), os.dup2(out, 2)
                os.chdir(asked["folder"])
                exec(asked["first"], {"arm": arm, "signal": signal})
                code = main(asked["words"])
                sys.stdout.flush()
            except BaseException:
                import traceback
                traceback.print_exc()
            finally:
                sys.stdout.flush(), sys.stderr.flush()
                os._exit(code)
    os.write(replies, (json.dumps(answer) + "\\n").encode())
"""


class Server:
    """Starts ``penstock`` commands as processes."""

    def __init__(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def ask(self, **request: Any) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return int(json.loads(self.process.stdout.readline()))

    def start(self, folder: Path, *words: str, first: str = "") -> Started:
        """Start a command in ``folder``; ``first`` is code that runs in the process before it (``arm`` is at hand)."""
        out = folder / f"out-{time.monotonic_ns()}.txt"
        return Started(self, self.ask(words=list(words), folder=str(folder), out=str(out), first=first), out)

    def run(self, folder: Path, *words: str, first: str = "") -> Started:
        """Run a command to its end."""
        started = self.start(folder, *words, first=first)
        started.wait()
        return started

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=120)


class Started:
    """A running command; ``code`` is its exit code once it has ended (negative: the signal that killed it)."""

    def __init__(self, server: Server, pid: int, out: Path) -> None:
        self.server, self.pid, self.out = server, pid, out
        self.code: int | None = None

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
        if self.code is None:
            self.code = self.server.ask(wait=self.pid)
        return self.code


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
