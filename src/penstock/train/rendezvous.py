"""The files by which a learner and its ranks on other nodes find each other, in the run's folder. No torch in here.

A learner that wants its ranks listens, and writes down where. Ranks connect and prove that they know the run's token
(:mod:`penstock.net.handshake`); no file holds it.
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import dataclass
from pathlib import Path

from penstock.net.blocking import BlockingLink
from penstock.net.handshake import client_half

CONNECT_TIMEOUT = 5.0
"""Seconds in which a learner that says it listens must take a connection."""


@dataclass(frozen=True)
class Rendezvous:
    """Where in a run's folder learner and ranks leave word for each other."""

    folder: Path
    """``ranks`` in the run's folder, which all nodes see."""

    @property
    def awaited(self) -> Path:
        """There while a learner waits for ranks: says where it listens."""
        return self.folder / "awaited.json"

    @property
    def working(self) -> Path:
        """There while all ranks of a learner are at work."""
        return self.folder / "working.json"

    def clear(self) -> None:
        """Forget a learner that has ended."""
        for file in (self.awaited, self.working):
            file.unlink(missing_ok=True)

    def address(self) -> tuple[str, int] | None:
        """Where a learner waits for ranks; None where none does."""
        try:
            found = json.loads(self.awaited.read_text(encoding="utf-8"))
            return str(found["host"]), int(found["port"])
        except (OSError, ValueError, KeyError):
            return None

    def listen(self, address: tuple[str, int]) -> None:
        """Say where a learner waits for ranks."""
        new = self.awaited.with_suffix(".new")
        new.write_text(json.dumps({"host": address[0], "port": address[1]}), encoding="utf-8")
        new.replace(self.awaited)


def connect_to_learner(address: tuple[str, int], token: str, rank: int) -> socket.socket:
    """The rank's side: a connection to the learner that listens there, for the process that will be the rank.

    Raises:
        WireError: who listens does not know the token.
        OSError, ConnectionLost, DeadlinePassed: nobody listens, or it took too long.
    """
    link = BlockingLink(socket.create_connection(address, CONNECT_TIMEOUT), "{}:{}".format(*address))
    try:
        link.shake_hands(client_half(token, f"rank-{rank}", "rank", link.peer))
    except BaseException:
        link.close()
        raise
    return link.detach()


def host_of_this_node() -> str:
    """The address of this node in its cluster, or loopback."""
    return os.environ.get("PENSTOCK_HOST", "127.0.0.1")
