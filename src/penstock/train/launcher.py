"""Where a learner has its other ranks: :class:`LocalLauncher` starts them as children of this process."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Protocol

import torch

from penstock.net.blocking import BlockingLink

SHUTDOWN_GRACE = 10.0
"""Seconds in which a rank may end by itself once its connection is closed."""
READING = 4096
"""Bytes at the end of a rank's log that are looked at for its last words."""


class RankHandle:
    """A rank that was started, on this machine or elsewhere: the connection to it, and its log."""

    def __init__(self, rank: int, link: BlockingLink, log: Path) -> None:
        self.rank, self.link, self.log = rank, link, log

    def ended(self) -> str:
        """How the rank ended; empty while it lives."""
        return self.link.ended()

    def last_words(self) -> str:
        """The last line of its log that says something."""
        with contextlib.suppress(OSError), open(self.log, "rb") as said:
            said.seek(max(0, self.log.stat().st_size - READING))
            lines = [line.strip() for line in said.read().decode(errors="replace").splitlines()]
            return next((line for line in reversed(lines) if line), "")
        return ""

    def stop(self) -> None:
        self.link.close()


class Launcher(Protocol):
    """Starts ranks, on this machine or elsewhere."""

    across: bool
    """Whether they are on several nodes."""

    def folder(self) -> str:
        """A new folder that all of them see, in which they meet."""
        ...

    def threads(self, size: int) -> int:
        """CPU threads of this process as one of ``size`` ranks."""
        ...

    def launching(self) -> AbstractContextManager[Any]:
        """Within it, ranks are launched."""
        ...

    def launch(self, bootstrap: Mapping[str, Any]) -> RankHandle:
        """Start a rank; ``bootstrap`` tells it who it is."""
        ...

    def close(self) -> None:
        """The ranks that were started have ended."""


class LocalLauncher:
    """Ranks are child processes of this one."""

    across = False

    def folder(self) -> str:
        return tempfile.mkdtemp(prefix="penstock-ranks-")

    def threads(self, size: int) -> int:
        """Those that were set for this process, or else its share of the cores."""
        cores = os.cpu_count() or 1
        now = torch.get_num_threads()
        return now if now < cores else max(1, cores // size)

    def launching(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def launch(self, bootstrap: Mapping[str, Any]) -> RankHandle:
        return LocalRank(bootstrap)

    def close(self) -> None:
        return None


class LocalRank(RankHandle):
    """A child process that runs :mod:`penstock.train.rank`. It ends with its connection, so never outlives this process."""

    def __init__(self, bootstrap: Mapping[str, Any]) -> None:
        rank = bootstrap["rank"]
        ours, theirs = socket.socketpair()
        log = Path(bootstrap["store"]).with_name(f"rank-{rank}.log")
        super().__init__(rank, BlockingLink(ours, f"rank {rank}"), log)
        with theirs, open(log, "wb") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "penstock.train.rank", str(rank)],
                stdin=theirs.fileno(),
                stdout=said,
                stderr=said,
                env={**os.environ, "OMP_NUM_THREADS": str(bootstrap["threads"])},
            )
        self.link.send({**bootstrap, "index": rank})

    def ended(self) -> str:
        code = self.process.poll()
        if code is None:
            return ""
        return f"killed by signal {-code}" if code < 0 else f"exit code {code}"

    def stop(self) -> None:
        super().stop()
        try:
            self.process.wait(SHUTDOWN_GRACE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
