"""A connection for threads: the frames, the heartbeats and the handshake of :mod:`penstock.net.link`, without an event loop.

One thread may send while another receives. Values may be dataclasses and functions of the program, by name: who listens to such
a link runs the same program and has proved to belong to the same run, or is the parent of this process.
"""

from __future__ import annotations

import math
import select
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from penstock.core.errors import ConnectionLost, DeadlinePassed, WireError
from penstock.net import handshake, link, wire
from penstock.net.handshake import Handshake, Result


class BlockingLink(link.Outward):
    """A socket that carries frames, in a thread. After an error it is of no more use.

    Every verb raises ConnectionLost where the connection ended, or the other end showed no life for as long as
    :data:`penstock.net.link.SILENCE` says.
    """

    def send(self, value: Any) -> None:
        """Send a value; waits until the socket has taken it. Raises WireError where it may not travel."""
        self.append(wire.pack(value, importable=True))
        with self._losing():
            while not self.push():
                if not self._ready(select.POLLOUT, link.SILENCE):
                    raise OSError(f"it took nothing for {link.SILENCE:g} s")

    def receive(
        self, seconds: float | None = None, max_header: int = wire.MAX_HEADER, max_body: int = wire.MAX_BODY, *,
        importable: bool = True,
    ) -> Any:  # fmt: skip
        """The next value, which may be of the program where ``importable``.

        Raises DeadlinePassed where none came whole within ``seconds``, WireError where it was no frame.
        """
        until = math.inf if seconds is None else time.monotonic() + seconds
        prelude: wire.Buffer = wire.HEARTBEAT
        while prelude == wire.HEARTBEAT:
            prelude = self._exactly(wire.PRELUDE.size, until)
        header, body = wire.lengths(prelude, self.peer, max_header, max_body)
        return wire.unpack(self._exactly(header, until), self._exactly(body, until), self.peer, importable)

    def shake_hands(self, half: Handshake[Result]) -> Result:
        """Carry a half of the handshake out. Raises WireError and DeadlinePassed."""
        until = time.monotonic() + handshake.SECONDS
        try:
            message = next(half)
            while True:
                if message is not None:
                    self.send(message)
                message = half.send(self.receive(until - time.monotonic(), handshake.MAX_BYTES, 0, importable=False))
        except StopIteration as end:
            result, last = end.value
        if last is not None:
            self.send(last)
        if isinstance(result, WireError):
            raise result
        return result

    def ended(self) -> str:
        """How the connection ended; empty while it has not, or while values wait to be received."""
        try:
            while (seen := self.socket.recv(wire.PRELUDE.size, socket.MSG_PEEK)) == wire.HEARTBEAT:
                self.socket.recv(len(seen))
        except BlockingIOError:
            return ""
        except OSError:  # reset, where the other end had not read all
            seen = b""
        return "" if seen else "its connection ended"

    def _exactly(self, size: int, until: float) -> memoryview:
        taken = np.empty(size, np.uint8).data if size else memoryview(b"")
        filled = 0
        with self._losing():
            while filled < size:
                try:
                    count = self.socket.recv_into(taken[filled:])
                except BlockingIOError:
                    self._await_more(until - time.monotonic())
                    continue
                if not count:
                    raise OSError("the other end closed it")
                filled += count
        return taken

    def _await_more(self, left: float) -> None:
        if not self._ready(select.POLLIN, max(0.0, min(left, link.SILENCE))):
            if left < link.SILENCE:
                raise DeadlinePassed(f"nothing came from {self.peer} in time")
            raise OSError(f"nothing was heard of it for {link.SILENCE:g} s")

    def _ready(self, event: int, seconds: float) -> bool:
        poll = select.poll()
        poll.register(self.socket, event)
        return bool(poll.poll(seconds * 1000))

    @contextmanager
    def _losing(self) -> Iterator[None]:
        try:
            yield
        except OSError as cause:
            self.lose(str(cause))
            raise ConnectionLost(f"the connection to {self.peer} ended: {self.reason}") from cause
