"""Runs of processes under a test's eyes: who they are, what they did, and that none outlives the run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from penstock.weights.folder import shared_folder

RECIPES = Path(__file__).with_name("procs_recipes.py")
ENVIRONMENT = {
    **os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200", "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
}  # fmt: skip
BATCH = 4


COMMAND = """
import sys
import warm
from armed import *

def in_role(words):
    if "penstock.runtime.role" in words:
        with open({folder!r} + "/roles.jsonl", "a", encoding="utf-8") as out:
            out.write(json.dumps([words[-1], os.getpid()]) + "\\n")
        name = words[-1]
        if name == "learner":
            record_trained()
        exec({in_roles!r}, {{**globals(), "name": name}})
    elif "penstock.train.rank" in words:
        with open({folder!r} + "/ranks.jsonl", "a", encoding="utf-8") as out:
            out.write(json.dumps([os.getppid(), os.getpid()]) + "\\n")

warm.in_children(in_role)
{first}
from penstock.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
"""A run whose roles are forked as it is itself, and write down who they are."""
PLAIN = "import sys\nfrom penstock.cli.main import main\nsys.exit(main(sys.argv[1:]))"
"""One whose roles execute Python anew, as they do for users."""


class Started:
    """A run on its way, in ``folder``/runs/run."""

    pause = 0.01
    """Seconds between two looks at what is waited for."""

    def __init__(self, folder: Path, *words: str, first: str = "", in_roles: str = "", forking: bool = True):
        """``first`` is code that runs in the supervisor before anything else, ``in_roles`` in every other process."""
        code = COMMAND.format(folder=str(folder), in_roles=in_roles, first=first) if forking else PLAIN
        self.begin(folder, [sys.executable, *([] if forking else ["-B"]), "-c", code, *words], ENVIRONMENT)

    def begin(self, folder: Path, command: list[str], environment: dict[str, str]) -> None:
        self.folder, self.run = folder, folder / "runs" / "run"
        self.out = folder / f"out-{time.monotonic_ns()}.txt"
        self.code: int | None = None
        self.groups: set[int] = set()
        self._roles = folder / "roles.jsonl"
        self._roles.unlink(missing_ok=True)
        with self.out.open("ab") as out:
            self.process = subprocess.Popen(
                command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip
        self.pid = self.process.pid

    # ---- what is there

    @property
    def text(self) -> str:
        return self.out.read_text(encoding="utf-8")

    @property
    def roles(self) -> dict[str, int]:
        """The latest process of every role."""
        found = dict(whole_lines(self._roles))
        self.groups |= {pid for _, pid in whole_lines(self._roles)}
        return found

    @property
    def step(self) -> int:
        """The last step that the event log tells of."""
        return last_step(self.run)

    def notes(self, what: str) -> list[dict[str, Any]]:
        """What the run's log holds of one kind of incident."""
        return [event for event in events(self.run) if event.get("what") == what]

    def everything(self) -> str:
        """For the message of a failed test."""
        self.poll()
        logs = [f"{file.name}: {file.read_text()[-1500:]}" for file in sorted((self.run / "logs").glob("*"))]
        told = [json.dumps(event) for event in events(self.run) if event["kind"] != "metrics"]
        return "\n".join([f"exit code {self.code}", self.text, *logs, *told[-15:], str(self.roles)])

    def ranks_of(self, learner: int) -> list[int]:
        """The processes of a learner's other ranks."""
        return [pid for parent, pid in whole_lines(self.folder / "ranks.jsonl") if parent == learner]

    # ---- what is done to it

    def signal(self, name: str, number: int) -> int:
        """Signal the process of a role, or the supervisor's group as a terminal does; gives its id."""
        if name == "supervisor":
            os.killpg(self.pid, number)
            return self.pid
        with suppress(ProcessLookupError):
            os.killpg(self.roles[name], number)
        return self.roles[name]

    def until(self, ready: Callable[[], Any], seconds: float = 240.0, what: str = "") -> None:
        """Wait for something, as long as the run goes."""
        deadline = time.monotonic() + seconds
        while not ready():
            assert self.poll() is None, f"the run ended before {what}: {self.everything()}"
            assert time.monotonic() < deadline, f"no {what} in {seconds} s: {self.everything()}"
            time.sleep(self.pause)

    def until_step(self, step: int, seconds: float = 240.0) -> None:
        self.until(lambda: self.step >= step, seconds, f"step {step}")

    def go(self) -> None:
        """Let the reward that waits at its row go on."""
        (self.folder / "go").touch()

    # ---- its end

    def poll(self) -> int | None:
        self.code = self.process.poll()
        return self.code

    def wait(self, seconds: float = 240.0) -> int:
        """The exit code, once the run has ended by itself."""
        deadline = time.monotonic() + seconds
        while self.poll() is None:
            assert time.monotonic() < deadline, f"the run did not end in {seconds} s: {self.everything()}"
            time.sleep(self.pause)
        assert self.code is not None
        return self.code

    def left(self) -> list[int]:
        """Processes of this run, or started by one of it, that are still there."""
        _ = self.roles
        return [pid for pid, group in processes() if group in self.groups | {self.pid}]

    def until_gone(self, seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while self.left():
            assert time.monotonic() < deadline, f"{self.left()} are left after {seconds} s: {self.everything()}"
            time.sleep(0.02)

    def assert_clean(self) -> None:
        """No process is left, nor anything in shared memory."""
        assert self.left() == []
        assert not shared_folder(sha256(str(self.run.resolve()).encode()).hexdigest()[:16]).exists()

    def assert_ends(self, whole: Path | None = None, steps: int = 0) -> None:
        """The run gets to its end: groups were trained once each, the weights are those of another run, and nothing is left."""
        self.go()
        assert self.wait(300) == 0, self.everything()
        if steps:
            assert_each_trained_once(self.folder, steps)
        assert whole is None or weights(self.run) == weights(whole)
        self.assert_clean()

    def assert_refused(self, *parts: str) -> None:
        """The run ended with one line, which says all of ``parts``."""
        assert self.wait() == 2, self.everything()
        said = [line for line in self.text.splitlines() if "penstock: error" in line]
        assert len(said) == 1, self.everything()
        for part in parts:
            assert part in said[0], f"{part!r} is not in {said[0]!r}"
        assert "Traceback" not in self.text
        self.assert_clean()

    def kill_everyone(self) -> None:
        """The end of a test, however it ended."""
        _ = self.roles
        for group in (self.pid, *self.groups):
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)


Start = Callable[..., Started]
"""What the fixture ``start`` gives."""
Undisturbed = Callable[..., Path]
"""What the fixture ``undisturbed`` gives."""


def processes() -> list[tuple[int, int]]:
    """(id, process group) of all living processes of this machine."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, _, group = (entry / "stat").read_text().rpartition(") ")[2].split()[:3]
            if state not in "ZX":
                found.append((int(entry.name), int(group)))
    return found


def whole_lines(file: Path) -> list[Any]:
    lines = file.read_bytes().split(b"\n")[:-1] if file.exists() else []  # the last may end within a character
    return [json.loads(line) for line in lines]


def events(run: Path) -> list[dict[str, Any]]:
    return whole_lines(run / "events.jsonl")


def last_step(run: Path) -> int:
    return max((event["step"] for event in events(run) if event["kind"] == "metrics"), default=0)


def trained(folder: Path) -> dict[int, list[int]]:
    """The ordinals of each version's batch; where a learner trained one again, it was the same batch."""
    found: dict[int, list[int]] = {}
    for version, ordinals in whole_lines(folder / "trained.jsonl"):
        assert found.setdefault(version, ordinals) == ordinals
    return found


def assert_each_trained_once(folder: Path, steps: int) -> None:
    """Ordinals 0 … steps · batch − 1, each in one batch."""
    batches = trained(folder)
    assert sorted(batches) == list(range(steps))
    assert sorted(ordinal for batch in batches.values() for ordinal in batch) == list(range(steps * BATCH))


def weights(run: Path) -> str:
    """SHA-256 of the trained model's file."""
    return sha256((run / "model" / "model.safetensors").read_bytes()).hexdigest()
