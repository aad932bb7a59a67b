"""Ranks of a learner on other nodes: processes that connect to it.

The supervisor keeps a process for each of them (:mod:`penstock.runtime.roles.rank`), which outlives learners that come and go.
"""

from __future__ import annotations

import contextlib
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from penstock.core.errors import ConnectionLost, DeadlinePassed, RanksLost, WireError
from penstock.net.blocking import BlockingLink
from penstock.net.handshake import server_half
from penstock.train.launcher import Launcher, RankHandle
from penstock.train.rendezvous import Rendezvous

ROOM = 900.0
"""Seconds that ranks may take to come: a cluster may have to find room for them first."""
LOOKING = 1.0
"""Seconds between two looks at whether they have taken too long."""


class RemoteLauncher(Launcher):
    """Starts no rank, but takes those that come.

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
