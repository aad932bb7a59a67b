"""Equality of mathematical answers (:mod:`penstock.rewards.equality`), judged in processes of its own.

Simplifying an answer can take for ever, so each question goes as a line of JSON to a worker process, which is killed at the
time limit and started again.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import math
import os
import queue
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.core.errors import RewardError, SpecError
from penstock.rewards.answers import answer_of, expected, statement
from penstock.rewards.equality import equal
from penstock.sandbox.threads import DeadlineError

if TYPE_CHECKING:
    from penstock.core.types import Sample

_START_SECONDS = 60.0
_MEMORY_BYTES = 4 * 2**30
_KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "PYTHONHOME")
"""Environment variables that the process has."""


class MathReward:
    """Whether a completion's final answer equals the expected one in mathematics: ``\\frac{1}{2}``, ``0.5`` and ``1/2``.

    The expected answer is the row's ``column``: what follows its last ``####`` or is in its last box, else all of it; any of
    several is right. The completion's is what :func:`~penstock.rewards.answers.statement` finds. A plain blocking function of
    (sample, columns), safe to call from several threads; ``limit`` is the number of seconds one answer may take, and waiting
    for one of the ``processes`` is not counted.
    """

    def __init__(self, deadline: float, *, column: str = "answer", limit: float = 5.0, processes: int = 2) -> None:
        if importlib.util.find_spec("math_verify") is None:
            raise SpecError('the reward "math" needs the math-verify package; run: pip install penstock[math]')
        if limit <= 0 or processes < 1:
            raise SpecError(f"reward math: limit={limit} and processes={processes} must be positive")
        self._column = column
        self._limit = min(limit, deadline)
        self.timeouts = 0
        """Answers that scored 0 because judging them took too long."""
        # Last in, first out: a second process starts only when the first is busy.
        self._workers: queue.LifoQueue[_Worker] = queue.LifoQueue()
        self._all = [_Worker() for _ in range(processes)]
        for worker in self._all:
            self._workers.put(worker)

    def __call__(self, sample: Sample, columns: Mapping[str, Any]) -> float:
        """1 if equal, else 0: also where judging takes longer than the limit, which is what the answer was written for.

        Raises:
            RewardError: the expected answer is missing or is no mathematics; the process died.
        """
        right = [f"{one:f}" if isinstance(one, Decimal) else one for one in expected(columns, self._column)]
        worker = self._workers.get()
        try:
            reply = worker.ask({"expected": right, "text": answer_of(sample), "limit": self._limit}, self._limit)
        except DeadlineError:  # the worker was killed, and is started again by the next question
            self.timeouts += 1
            return 0.0
        finally:
            self._workers.put(worker)
        if "error" in reply:
            raise RewardError(reply["error"])
        return float(reply["score"])

    def close(self) -> None:
        """End the processes, also one that is busy."""
        for worker in self._all:
            worker.kill()


class _Worker:
    """One process, started when first asked and again after it was killed. Used by one thread at a time."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        try:
            if self._process is None:
                self._start()
            return self._exchange(request, seconds)
        except BaseException:
            self.kill()
            raise

    def _start(self) -> None:
        # This very package must be found, whatever the import path of the parent was when it started. Of the environment,
        # which may hold tokens, it gets what a process needs to run.
        root = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
        command = [sys.executable, "-P", "-c", "from penstock.rewards.math import serve; serve()"]
        self._link, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                command,
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**kept, "PYTHONPATH": path},
            )
        self._lines = self._link.makefile("rb")
        try:
            self._exchange({"expected": ["1"], "text": "1.0\\cdot 1", "limit": _START_SECONDS}, _START_SECONDS)
        except DeadlineError as error:
            raise RewardError(f"its process did not start within {_START_SECONDS:g} s; is the machine overloaded?") from error

    def _exchange(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        try:
            self._link.settimeout(seconds)
            self._link.sendall(json.dumps(request).encode() + b"\n")
            line = self._lines.readline()
        except TimeoutError:
            raise DeadlineError(seconds) from None
        except (OSError, ValueError):  # its end broke, or was closed with the reward
            line = b""
        if not line.endswith(b"\n"):
            process = self._process
            raise RewardError(f"its process died (exit code {process and process.wait()}), out of memory perhaps")
        return json.loads(line)

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            self._link.close()
            self._lines.close()


def serve() -> None:
    """The worker process: answer one JSON line with another until the input ends."""
    with contextlib.suppress(ValueError, OSError):  # some systems know no such limit
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    logging.disable(logging.CRITICAL)
    for line in (link := socket.socket(fileno=0)).makefile("rb"):
        request = json.loads(line)
        signal.alarm(math.ceil(request["limit"]) + 5)  # ends this process should the parent be gone and unable to
        try:
            said = statement(request["text"])
            found = [equal(gold, said) for gold in request["expected"]]  # all: one that cannot be read is an error
            reply: dict[str, Any] = {"score": float(any(found))}
        except Exception as error:
            reply = {"error": str(error) or type(error).__name__}
        signal.alarm(0)
        link.sendall(json.dumps(reply).encode() + b"\n")
