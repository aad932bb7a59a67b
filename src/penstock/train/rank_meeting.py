"""How a learner and its ranks on other nodes find each other, and prove that they belong to one run. No torch in here.

A learner that wants its ranks listens, and writes down where in the run's folder, which all nodes see. Neither end sends the
run's token: each signs the other's fresh number with it. From then on the connection is what the pipes of a child are.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path

from penstock.core.errors import WireError

GREETING = 5.0
"""Seconds that the proof of one connection may take."""
NUMBER = 32
"""Bytes of a fresh number and of a proof."""
PLACE = 4
"""Bytes in which a rank tells which one it is."""
IDLE, EVERY, TIMES = 10, 5, 3
"""Seconds until a silent connection is tested, between tests, and how many may stay unanswered."""


@dataclass(frozen=True)
class Meeting:
    """The files of a run by which learner and ranks find each other."""

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


def admit(connection: socket.socket, token: str) -> int:
    """The learner's half of the proof: which rank is there. Neither end sends the token; each signs the other's fresh number.

    Raises:
        WireError: it does not know the token.
        OSError: it left, or took longer than :data:`GREETING` seconds.
    """
    connection.settimeout(GREETING)
    mine = secrets.token_bytes(NUMBER)
    connection.sendall(mine)
    said = _exactly(connection, NUMBER + PLACE + NUMBER)
    theirs, place, proof = said[:NUMBER], said[NUMBER : NUMBER + PLACE], said[NUMBER + PLACE :]
    if not hmac.compare_digest(proof, _proof(token, b"rank", mine, theirs, place)):
        raise WireError("it does not know the token of this run")
    connection.sendall(_proof(token, b"learner", theirs, mine, place))
    _settle(connection)
    return int.from_bytes(place, "big")


def introduce(host: str, port: int, token: str, rank: int) -> socket.socket:
    """The rank's half: a connection to the learner that listens there.

    Raises:
        WireError: who listens does not know the token.
        OSError: nobody listens, or it took longer than :data:`GREETING` seconds.
    """
    connection = socket.create_connection((host, port), GREETING)
    try:
        theirs = _exactly(connection, NUMBER)
        mine, place = secrets.token_bytes(NUMBER), rank.to_bytes(PLACE, "big")
        connection.sendall(mine + place + _proof(token, b"rank", theirs, mine, place))
        if not hmac.compare_digest(_exactly(connection, NUMBER), _proof(token, b"learner", mine, theirs, place)):
            raise WireError(f"who listens at {host}:{port} does not know the token of this run")
        _settle(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _settle(connection: socket.socket) -> None:
    """Make the connection what a pipe is, and let neither end wait long for the other's node when that has vanished."""
    connection.setblocking(True)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", IDLE), ("TCP_KEEPINTVL", EVERY), ("TCP_KEEPCNT", TIMES)):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _exactly(connection: socket.socket, count: int) -> bytes:
    """Bytes of a greeting. Raises OSError where the other end leaves before, or says too little in time."""
    said = b""
    while len(said) < count:
        part = connection.recv(count - len(said))
        if not part:
            raise ConnectionResetError("the other end left")
        said += part
    return said


def _proof(token: str, *said: bytes) -> bytes:
    return hmac.digest(token.encode(), b"\0".join(said), "sha256")


def host_of_this_node() -> str:
    """The address of this node in its cluster, or loopback."""
    return os.environ.get("PENSTOCK_HOST", "127.0.0.1")
