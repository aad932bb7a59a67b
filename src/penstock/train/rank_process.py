"""A rank as a process of this machine: started, spoken to over its pipes, ended."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import IO, Any, Protocol

import torch

from penstock.core.errors import ConnectionLost, RanksLost
from penstock.train import frames

PARTING = 10.0
"""Seconds in which a rank may end by itself once its pipe is closed."""
READING = 4096
"""Bytes at the end of what a rank said that are looked at for its last words."""


class Handle(Protocol):
    """A rank that was started, wherever it runs."""

    def send(self, value: Any) -> None: ...

    def receive(self, seconds: float) -> Any:
        """The next answer. Raises ConnectionLost where the rank is gone, DeadlinePassed where it is silent."""
        ...

    def ended(self) -> str:
        """How the rank ended; empty while it lives."""
        ...

    def last_words(self) -> str: ...

    def stop(self) -> None: ...


class Starter(Protocol):
    """Starts ranks, on this machine or elsewhere."""

    across: bool
    """Whether they are on several nodes."""

    def folder(self) -> str:
        """A new folder that all of them see, in which they meet."""
        ...

    def threads(self, size: int) -> int:
        """CPU threads of this process as one of ``size`` ranks."""
        ...

    def meeting(self) -> AbstractContextManager[Any]:
        """Within it, ranks are started."""
        ...

    def start(self, greeting: Mapping[str, Any]) -> Handle:
        """Start a rank; ``greeting`` tells it who it is."""
        ...

    def close(self) -> None:
        """The ranks that were started have ended."""


class Here:
    """Ranks are child processes of this one."""

    across = False

    def folder(self) -> str:
        return tempfile.mkdtemp(prefix="penstock-ranks-")

    def threads(self, size: int) -> int:
        """Those that were set for this process, or else its share of the cores."""
        cores = os.cpu_count() or 1
        now = torch.get_num_threads()
        return now if now < cores else max(1, cores // size)

    def meeting(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def start(self, greeting: Mapping[str, Any]) -> Handle:
        return RankProcess(greeting)

    def close(self) -> None:
        return None


class RankProcess:
    """A child process that runs :mod:`penstock.train.rank`. It ends when its input does, so never outlives this process."""

    def __init__(self, greeting: Mapping[str, Any]) -> None:
        self.rank = rank = greeting["rank"]
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the rank
        environment = {**os.environ, "OMP_NUM_THREADS": str(greeting["threads"])}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "penstock.train.rank", str(rank)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env=environment,
            bufsize=0,
        )
        self.send({**greeting, "index": rank})

    def send(self, value: Any) -> None:
        assert self.process.stdin is not None
        try:
            frames.write(self.process.stdin.fileno(), value)
        except (OSError, ValueError) as error:
            raise ConnectionLost(f"rank {self.rank} is gone") from error

    def receive(self, seconds: float) -> Any:
        assert self.process.stdout is not None
        return frames.read(self.process.stdout.fileno(), seconds)

    def ended(self) -> str:
        code = self.process.poll()
        if code is None:
            return ""
        return f"killed by signal {-code}" if code < 0 else f"exit code {code}"

    def last_words(self) -> str:
        return last_line(self._said)

    def stop(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self.process.wait(PARTING)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._said.close()


def last_line(said: IO[bytes]) -> str:
    """The last line of a file that says something."""
    said.seek(0, os.SEEK_END)
    said.seek(max(0, said.tell() - READING))
    lines = [line.strip() for line in said.read().decode(errors="replace").splitlines()]
    return next((line for line in reversed(lines) if line), "")


def silent(rank: int, doing: str, seconds: float) -> RanksLost:
    """The error about a rank that did not answer."""
    return RanksLost(
        f"learner rank {rank} did not answer within {seconds:.0f} s (asked to {doing}); its machine may be overloaded"
    )
