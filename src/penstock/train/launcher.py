"""Where a learner has its other ranks: children of this process, unless a launcher takes them from elsewhere."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from penstock.core.errors import ConnectionLost, DeadlinePassed, RanksLost, WireError
from penstock.core.files import last_words
from penstock.net.blocking import BlockingLink
from penstock.net.handshake import server_half
from penstock.train.rendezvous import Rendezvous

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
        return last_words(self.log)

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


ROOM = 900.0
"""Seconds that ranks may take to come: a cluster may have to find room for them first."""
LOOKING = 1.0
"""Seconds between two looks at whether they have taken too long."""


class RemoteLauncher(Launcher):
    """Starts no rank, but takes those that come: processes of other nodes, kept by the supervisor, which outlive learners.

    ``run`` is the run's folder, ``host`` an address of this node, ``token`` that of the run. A rank has ``seconds`` to
    come, and computes with ``threads``.
    """

    across = True

    def __init__(self, run: Path, host: str, token: str, threads: int, seconds: float = ROOM) -> None:
        self.files, self.logs = Rendezvous(run / "ranks"), run / "logs"
        self.host, self.token, self.rank_threads, self.seconds = host, token, threads, seconds
        self._listener: socket.socket | None = None
        self._came: dict[int, BlockingLink] = {}
        self.files.folder.mkdir(parents=True, exist_ok=True)
        self.files.clear()

    def folder(self) -> str:
        return tempfile.mkdtemp(prefix="group-", dir=self.files.folder)

    def threads(self, size: int) -> int:
        return torch.get_num_threads()

    @contextmanager
    def launching(self) -> Iterator[None]:
        """Listen, and say where; afterwards all that are needed have come."""
        with socket.create_server((self.host, 0)) as self._listener:
            self._listener.settimeout(LOOKING)
            self.files.listen((self.host, self._listener.getsockname()[1]))
            try:
                yield
                self.files.awaited.replace(self.files.working)
            finally:
                self.files.awaited.unlink(missing_ok=True)
                for link in self._came.values():
                    link.close()
                self._came.clear()

    def launch(self, bootstrap: Mapping[str, Any]) -> RankHandle:
        """Take a rank, once it has come.

        Raises:
            RanksLost: it did not come within ``seconds``.
        """
        rank, until = bootstrap["rank"], time.monotonic() + self.seconds
        log = self.logs / f"rank-{rank}.log"
        while rank not in self._came:
            if time.monotonic() > until:
                raise RanksLost(f"learner rank {rank} did not come within {self.seconds:.0f} s; its log is {log}")
            self._accept()
        handle = RankHandle(self._came.pop(rank), log)
        handle.link.send({**bootstrap, "index": 0, "threads": self.rank_threads})
        return handle

    def _accept(self) -> None:
        """Take one connection whose rank proves itself; a rank that comes again has started again."""
        assert self._listener is not None
        with contextlib.suppress(TimeoutError):
            connection, address = self._listener.accept()
            link = BlockingLink(connection, "{}:{}".format(*address[:2]))
            try:
                name, _ = link.shake_hands(server_half(self.token, "learner", link.peer))
                rank = int(name.rpartition("-")[2])
            except (WireError, ConnectionLost, DeadlinePassed, ValueError):  # a stranger, or a rank that has died
                return link.close()
            link.peer = f"rank {rank}"
            if rank in self._came:
                self._came[rank].close()
            self._came[rank] = link

    def close(self) -> None:
        self.files.clear()
