"""Runs as processes of their own, and what their logs say while they go.

``python -m penstock.sweep.process RUN`` is such a process: it goes on with the run in a folder, from its start or its last
checkpoint. Its standard input is held by the sweep. When that ends, the sweep is gone, and the run saves and ends as well.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from penstock.ckpt.lease import ATTEMPT
from penstock.config.run import Run
from penstock.core.errors import DataError, PenstockError
from penstock.core.files import last_words
from penstock.runtime import launch
from penstock.runtime.folder import RunFolder
from penstock.runtime.supervisor import ending

SILENT = 3600.0
"""A run whose log has not grown for so many seconds hangs, and is ended."""
SAVING = 600.0
"""Seconds in which a run may finish its step and save, once it is to end."""
POLL = 0.2
"""Seconds between two looks at processes."""
DEVICES = "CUDA_VISIBLE_DEVICES"


class Curve:
    """The objective by step of a run's last stage, read on from its event log with each :meth:`refresh`."""

    def __init__(self, folder: Path, run: Run, objective: str) -> None:
        self.log, self.stage, self.objective = RunFolder(folder).events, run.stages[-1].name, objective
        self.heard = time.monotonic()
        """When the log last had something new."""
        self._forget()

    def _forget(self) -> None:
        self.values: dict[int, float] = {}
        self.others: set[str] = set()
        """All metrics of the stage."""
        self._file, self._offset = 0, 0

    def refresh(self) -> None:
        """Read the lines that are new; all of them where a resume has written another log in the old one's place."""
        with contextlib.suppress(FileNotFoundError), open(self.log, "rb") as file:
            status = os.fstat(file.fileno())
            if status.st_ino != self._file or status.st_size < self._offset:
                self._forget()
                self._file = status.st_ino
            file.seek(self._offset)
            for line in iter(file.readline, b""):
                if not line.endswith(b"\n"):
                    break
                self._offset, self.heard = self._offset + len(line), time.monotonic()
                if line.startswith(b'{"kind": "metrics"'):
                    event = json.loads(line)
                    values = event["values"] if event["stage"] == self.stage else {}
                    self.others |= values.keys()
                    if self.objective in values:
                        self.values[event["step"]] = float(values[self.objective])

    @property
    def last(self) -> float:
        """The value of the last step that has one."""
        return self.values[max(self.values)]


def curve_of_finished(folder: Path, run: Run, objective: str) -> Curve | None:
    """The curve of a run that is done; None for one that can go on or begin.

    Raises:
        DataError: it is done and never reported the objective.
    """
    found, curve = RunFolder(folder), Curve(folder, run, objective)
    if not found.spec.exists() or found.finished(run) is None:
        return None
    curve.refresh()
    if not curve.values:
        alike = {name for name in curve.others if name.split("/")[0] == objective.split("/")[0]} or curve.others
        known = ", ".join(sorted(alike)) or "nothing"
        raise DataError(f'{folder}: stage {curve.stage} never reported "{objective}"; choose --objective from: {known}')
    return curve


class Process:
    """One run under way in its folder, from its beginning or its last checkpoint."""

    def __init__(self, run: Run, folder: Path, objective: str, environment: dict[str, str]) -> None:
        """Start it. Raises CheckpointError where the folder cannot be used."""
        self.run, self.folder, self.output, self.curve = run, folder, folder / "output.txt", Curve(folder, run, objective)
        self._asked_at, self._hung = 0.0, False
        if not RunFolder(folder).spec.exists():
            RunFolder(folder).begin(run).close()
        with open(self.output, "ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "penstock.sweep.process", str(folder)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={ATTEMPT: "0", **os.environ, **environment},  # so it waits for one of a killed sweep, which may still save
            )

    def ended(self) -> bool:
        """Whether it has; reads its log on. One that hangs is ended."""
        alive, now = self._process.poll() is None, time.monotonic()
        self.curve.refresh()
        if alive:
            self._hung = self._hung or now - self.curve.heard > SILENT
            if self._hung or (self._asked_at and now - self._asked_at > SAVING):
                self.kill()
        elif self._process.stdin is not None:
            self._process.stdin.close()
        return not alive

    @property
    def problem(self) -> str:
        """Why it failed, without what is its own: the same cause gives the same text; empty where it did not fail."""
        code = self._process.returncode
        if self._hung:
            return f"logged nothing for {SILENT:.0f} s and was ended"
        if code == 0:
            return "" if RunFolder(self.folder).finished(self.run) is not None else "ended before it was finished"
        words = last_words(self.output).replace(str(self.folder), "RUN").partition("; mend that and go on with")[0]
        return words if code > 0 and words else f"{ending(code)} {words}".strip()

    def stop(self) -> None:
        """Ask it to save and end."""
        if not self._asked_at:
            self._asked_at = time.monotonic()
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it and what it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)


class Slots:
    """Room for processes that run at once, each with its share of the GPUs that CUDA_VISIBLE_DEVICES names, if it does."""

    def __init__(self, count: int, threads: int) -> None:
        """``threads``: of each process; 0: all cores, shared among them."""
        threads = threads or max(1, (os.cpu_count() or 1) // count)
        gpus = [one for one in os.environ.get(DEVICES, "").split(",") if one]
        self._environments = [{"OMP_NUM_THREADS": str(threads)} for _ in range(count)]
        for place, environment in enumerate(self._environments if gpus else ()):
            environment[DEVICES] = ",".join(gpus[place::count]) or gpus[place % len(gpus)]
        self._running: list[Process | None] = [None] * count

    @property
    def free(self) -> int:
        return self._running.count(None)

    def start(self, run: Run, folder: Path, objective: str) -> Process:
        """Start a run where there is room."""
        place = self._running.index(None)
        started = self._running[place] = Process(run, folder, objective, self._environments[place])
        return started

    def give_back(self, process: Process) -> None:
        self._running[self._running.index(process)] = None

    def end_all(self, at_once: Iterable[bool]) -> None:
        """Ask every process to save and wait for that; ``at_once`` says at each look whether there is no time for it."""
        running = [process for process in self._running if process is not None]
        for process in running:
            process.stop()
        for now in at_once:
            running = [process for process in running if not process.ended()]
            for process in running if now else ():
                process.kill()
            if not running:
                return
            time.sleep(POLL)


def main(words: Sequence[str]) -> int:
    """Carry the run out; gives the exit code: 0 done, 2 failed, 130 stopped."""
    threading.Thread(target=_stop_with_parent, name="parent", daemon=True).start()
    folder = RunFolder(Path(words[0]))
    try:
        launch(folder.read(), folder.path, resume=True)
    except PenstockError as error:
        print(f"{type(error).__name__}: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
        return 2
    except KeyboardInterrupt as stopped:
        print(stopped, file=sys.stderr, flush=True)
        return 130
    return 0


def _stop_with_parent() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(SAVING)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
