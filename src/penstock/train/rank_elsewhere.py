"""Ranks of a learner on other nodes: processes that come to it, and are spoken to over a socket as a child over its pipes.

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

from penstock.core.errors import ConnectionLost, RanksLost, WireError
from penstock.train import frames
from penstock.train.rank_meeting import Meeting, admit
from penstock.train.rank_process import last_line

ROOM = 900.0
"""Seconds that ranks may take to come: a cluster may have to find room for them first."""
LOOKING = 1.0
"""Seconds between two looks at whether they have taken too long."""


class Elsewhere:
    """Starts no rank, but takes those that come.

    ``run`` is the run's folder, ``host`` an address of this node, ``token`` that of the run. A rank has ``seconds`` to
    come, and computes with ``threads``.
    """

    across = True

    def __init__(self, run: Path, host: str, token: str, threads: int, seconds: float = ROOM) -> None:
        self.files, self.logs = Meeting(run / "ranks"), run / "logs"
        self.host, self.token, self.rank_threads, self.seconds = host, token, threads, seconds
        self._listener: socket.socket | None = None
        self._came: dict[int, socket.socket] = {}
        self.files.folder.mkdir(parents=True, exist_ok=True)
        self.files.clear()

    def folder(self) -> str:
        return tempfile.mkdtemp(prefix="group-", dir=self.files.folder)

    def threads(self, size: int) -> int:
        return torch.get_num_threads()

    @contextmanager
    def meeting(self) -> Iterator[None]:
        """Listen, and say where; afterwards all that are needed have come."""
        with socket.create_server((self.host, 0)) as self._listener:
            self._listener.settimeout(LOOKING)
            self.files.listen((self.host, self._listener.getsockname()[1]))
            try:
                yield
                self.files.awaited.replace(self.files.working)
            finally:
                self.files.awaited.unlink(missing_ok=True)
                for connection in self._came.values():
                    connection.close()
                self._came.clear()

    def start(self, greeting: Mapping[str, Any]) -> RankElsewhere:
        """Take a rank, once it has come.

        Raises:
            RanksLost: it did not come within ``seconds``.
        """
        rank, until = greeting["rank"], time.monotonic() + self.seconds
        while rank not in self._came:
            if time.monotonic() > until:
                raise RanksLost(
                    f"learner rank {rank} did not come within {self.seconds:.0f} s; its log is {self.logs / f'rank-{rank}.log'}"
                )
            self._accept()
        handle = RankElsewhere(rank, self._came.pop(rank), self.logs / f"rank-{rank}.log")
        handle.send({**greeting, "index": 0, "threads": self.rank_threads})
        return handle

    def _accept(self) -> None:
        """Take one connection whose rank proves itself; a rank that comes again has started again."""
        assert self._listener is not None
        with contextlib.suppress(TimeoutError):
            connection, _ = self._listener.accept()
            try:
                rank = admit(connection, self.token)
            except (OSError, WireError):  # a stranger, or a rank that has died
                connection.close()
                return
            if rank in self._came:
                self._came[rank].close()
            self._came[rank] = connection

    def close(self) -> None:
        self.files.clear()


class RankElsewhere:
    """A rank behind a connection."""

    def __init__(self, rank: int, connection: socket.socket, log: Path) -> None:
        self.rank, self.connection, self.log = rank, connection, log

    def send(self, value: Any) -> None:
        try:
            frames.write(self.connection.fileno(), value)
        except (OSError, ValueError) as error:
            raise ConnectionLost(f"rank {self.rank} is gone") from error

    def receive(self, seconds: float) -> Any:
        try:
            return frames.read(self.connection.fileno(), seconds)
        except OSError as error:
            raise ConnectionLost(f"rank {self.rank} is gone: {error}") from error

    def ended(self) -> str:
        try:
            said = self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return ""
        except OSError as error:
            return f"its connection broke: {error}"
        return "" if said else "its connection ended"

    def last_words(self) -> str:
        with contextlib.suppress(OSError), open(self.log, "rb") as said:
            return last_line(said)
        return ""

    def stop(self) -> None:
        self.connection.close()
