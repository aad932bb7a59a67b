"""Where a learner has its other ranks: children of this process, unless a launcher takes them from elsewhere."""

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
from typing import Any

import torch

from penstock.net.blocking import BlockingLink

SHUTDOWN_GRACE = 10.0
"""Seconds in which a rank may end by itself once its connection is closed."""


class RankHandle:
    """A rank that was started, on this machine (``process``) or elsewhere: the connection to it, and its log."""

    def __init__(self, link: BlockingLink, log: Path, process: subprocess.Popen[bytes] | None = None) -> None:
        self.link, self.log, self.process = link, log, process

    def ended(self) -> str:
        """How the rank ended; empty while it lives."""
        if self.process is None:
            return self.link.ended()
        code = self.process.poll()
        if code is None:
            return ""
        return f"killed by signal {-code}" if code < 0 else f"exit code {code}"

    def last_words(self) -> str:
        """The last line of its log that says something."""
        with contextlib.suppress(OSError):
            lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines()]
            return next((line for line in reversed(lines) if line), "")
        return ""

    def stop(self) -> None:
        self.link.close()
        if self.process is not None:
            try:
                self.process.wait(SHUTDOWN_GRACE)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


class Launcher:
    """Starts ranks as children of this process. They end with their connection, so they never outlive it."""

    across = False
    """Whether ranks are on several nodes."""

    def folder(self) -> str:
        """A new folder that all of them see, in which they meet."""
        return tempfile.mkdtemp(prefix="penstock-ranks-")

    def threads(self, size: int) -> int:
        """CPU threads of this process as one of ``size`` ranks: those that were set for it, or else its share of the cores."""
        cores = os.cpu_count() or 1
        now = torch.get_num_threads()
        return now if now < cores else max(1, cores // size)

    def launching(self) -> AbstractContextManager[Any]:
        """Within it, ranks are launched."""
        return nullcontext()

    def launch(self, bootstrap: Mapping[str, Any]) -> RankHandle:
        """Start a rank (:mod:`penstock.train.rank`); ``bootstrap`` tells it who it is."""
        rank = bootstrap["rank"]
        ours, theirs = socket.socketpair()
        log = Path(bootstrap["store"]).with_name(f"rank-{rank}.log")
        with theirs, open(log, "wb") as said:
            process = subprocess.Popen(
                [sys.executable, "-m", "penstock.train.rank", str(rank)],
                stdin=theirs.fileno(),
                stdout=said,
                stderr=said,
                env={**os.environ, "OMP_NUM_THREADS": str(bootstrap["threads"])},
            )
        handle = RankHandle(BlockingLink(ours, f"rank {rank}"), log, process)
        handle.link.send({**bootstrap, "index": rank})
        return handle

    def close(self) -> None:
        """The ranks that were started have ended."""
