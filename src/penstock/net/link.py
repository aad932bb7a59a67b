"""One connection as frames in and frames out, for event loops. :mod:`penstock.net.blocking` has the same for threads.

Takes a connected socket. Frames leave in the order in which they were posted; a frame that has begun is always finished, so a
caller that is cancelled leaves no half frame behind. Large arrays go from where they lie into the socket, and a body is read
into the one buffer its arrays then view.

Both ends send heartbeats, from a thread and between two frames, so also while the process computes for minutes or loads a
model. An end that hears nothing for :data:`SILENCE` seconds knows that the other process stalls or that the network
between them is cut, and ends the connection. Time in which it stood still itself does not count.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import time
from collections import deque
from itertools import islice
from typing import Any

import numpy as np

from penstock.core.errors import ConnectionLost, WireError
from penstock.net import handshake, wire
from penstock.net.handshake import Handshake, Result
from penstock.net.memory import keep_freed_memory

SILENCE = float(os.environ.get("PENSTOCK_SILENCE", "60"))
"""Seconds without a byte from the other end after which a connection is lost; the same for all processes of a run."""

BEATS = 12
"""Heartbeats in that time."""

BACKLOG = 1 << 22
"""Bytes that wait to leave; who sends more waits."""

_SCRATCH_BYTES, _BUFFERS = 1 << 18, 64  # of one read, of one write

_links: set[Outward] = set()
_added = threading.Event()
_heart: threading.Thread | None = None

os.register_at_fork(after_in_child=_links.clear)  # a child closes what it inherits, and the numbers name other files then


def _send_heartbeats() -> None:
    last = time.monotonic()
    while True:
        if (left := last + SILENCE / BEATS - time.monotonic()) > 0:
            _added.wait(left)
            _added.clear()
            continue
        last = time.monotonic()
        for link in list(_links):
            link.beat()


class Outward:
    """A socket's way out, for the links of event loops and of threads.

    Attributes:
        peer: who is at the other end, for errors.
        reason: why nothing can be sent any more; empty while it can.
        posted, left: bytes that were to leave and that have left.
    """

    def __init__(self, connection: socket.socket, peer: str) -> None:
        global _heart
        connection.setblocking(False)
        if connection.family in (socket.AF_INET, socket.AF_INET6):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.peer, self.reason = peer, ""
        self.posted = self.left = 0
        self.socket = connection
        self._outbox: deque[memoryview] = deque()
        self._lock = threading.RLock()
        _links.add(self)
        _added.set()
        keep_freed_memory()
        if _heart is None or not _heart.is_alive():
            _heart = threading.Thread(target=_send_heartbeats, name="heartbeats", daemon=True)
            _heart.start()

    def append(self, frame: list[wire.Buffer]) -> None:
        """Put a frame behind those that wait to be sent. Raises ConnectionLost."""
        with self._lock:
            if self.reason:
                raise ConnectionLost(f"the connection to {self.peer} has ended: {self.reason}")
            self._outbox.extend(memoryview(buffer) for buffer in frame if len(buffer))
            self.posted += sum(map(len, frame))

    def push(self) -> bool:
        """Give the socket what it takes without waiting; whether all has left. Any thread may. Raises OSError."""
        with self._lock:
            while self._outbox:
                try:
                    count = self.socket.sendmsg(list(islice(self._outbox, _BUFFERS)))
                except BlockingIOError:
                    return False
                self.left += count
                while self._outbox and count >= len(self._outbox[0]):
                    count -= len(self._outbox.popleft())
                if count:  # it is full; asked again at once it would take a little at a time
                    self._outbox[0] = self._outbox[0][count:]
                    return False
            return True

    def beat(self) -> None:
        """Send a sign of life, unless something is on its way already."""
        with self._lock, contextlib.suppress(OSError, ConnectionLost):  # who reads sees the end
            if not self._outbox:
                self.append([wire.HEARTBEAT])
            self.push()

    def lose(self, why: str) -> None:
        """Send nothing more, and let both readers see the end."""
        with self._lock, contextlib.suppress(OSError):
            self.reason = self.reason or why
            self._outbox.clear()
            _links.discard(self)
            self.socket.shutdown(socket.SHUT_RDWR)  # raises where it had ended already

    def close(self) -> None:
        """End the connection; what waits to be sent is lost. Nobody may be receiving."""
        self.lose("it was closed here")
        with self._lock:
            self.socket.close()

    def detach(self) -> socket.socket:
        """The socket, for another process to go on with; nothing may be on its way."""
        with self._lock:
            _links.discard(self)
            self.reason = "another process has it"
            return self.socket


class Link(Outward):
    """A socket that carries frames, in an event loop."""

    def __init__(self, connection: socket.socket, peer: str) -> None:
        super().__init__(connection, peer)
        self._loop = asyncio.get_running_loop()
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self._start = self._end = 0  # what has been read and not been taken
        self.unsent: deque[tuple[int, asyncio.Future[None] | None]] = deque()
        """Where frames that have not left end, and who waits for that."""
        self._pushing = self._writing = False
        self._quiet = 0
        self._timer = self._loop.call_later(SILENCE / BEATS, self._listen)

    def post(self, frame: list[wire.Buffer], sent: asyncio.Future[None] | None = None) -> None:
        """Put a frame behind those that wait to be sent. Who posts bounds how many may wait."""
        self.append(frame)
        self.unsent.append((self.posted, sent))
        if not self._pushing:
            self._pushing = True
            self._loop.call_soon(self._push)

    async def send(self, frame: list[wire.Buffer]) -> None:
        """Post a frame, and wait until all has left where much waits to leave. Raises ConnectionLost."""
        self.post(frame)
        if self.posted - self.left > BACKLOG or len(self.unsent) > _BUFFERS:
            await self.flush()

    async def flush(self) -> None:
        """Wait until the socket has taken all that was posted. Raises ConnectionLost where the connection ends before."""
        sent: asyncio.Future[None] = self._loop.create_future()
        self.post([], sent)
        await sent

    async def receive(self, max_header: int = wire.MAX_HEADER, max_body: int = wire.MAX_BODY) -> Any:
        """The next value.

        Raises:
            ConnectionLost: the connection ended.
            WireError: what came is no frame, or a larger one than may come.
        """
        prelude: wire.Buffer = wire.HEARTBEAT
        while prelude == wire.HEARTBEAT:
            prelude = await self._read(wire.PRELUDE.size)
        header, body = wire.lengths(prelude, self.peer, max_header, max_body)
        return wire.unpack(await self._read(header), await self._read(body), self.peer)

    async def shake_hands(self, half: Handshake[Result]) -> Result:
        """Carry a half of the handshake out.

        Raises:
            WireError: what came is no greeting, or its sender does not know the token.
            ConnectionLost: the other end left.
            TimeoutError: it took longer than :data:`penstock.net.handshake.SECONDS`.
        """
        async with asyncio.timeout(handshake.SECONDS):
            try:
                message = next(half)
                while True:
                    self.post(wire.pack(message) if message else [])
                    message = half.send(await self.receive(handshake.MAX_BYTES, 0))
            except StopIteration as end:
                result, last = end.value
            self.post(wire.pack(last) if last else [])
            await self.flush()
        if isinstance(result, WireError):
            raise result
        return result

    def lose(self, why: str) -> None:
        """Send nothing more: fail those who wait for it, and let both readers see the end."""
        super().lose(why)
        self._timer.cancel()
        if self._writing:
            self._loop.remove_writer(self.socket)
            self._writing = False
        for _, sent in self.unsent:
            if sent is not None and not sent.done():
                sent.set_exception(ConnectionLost(f"the connection to {self.peer} ended: {self.reason}"))
        self.unsent.clear()

    def _push(self) -> None:
        """Runs soon after a post, and whenever the socket takes more."""
        try:
            done = self.push()
        except OSError as cause:
            return self.lose(str(cause))
        self._pushing = not done
        if self._writing == done and not self.reason:
            self._writing = not done
            if done:
                self._loop.remove_writer(self.socket)
            else:
                self._loop.add_writer(self.socket, self._push)
        while self.unsent and self.unsent[0][0] <= self.left:
            _, sent = self.unsent.popleft()
            if sent is not None and not sent.done():
                sent.set_result(None)

    def _listen(self) -> None:
        """Counts silence in turns of this timer, which stops when this process does."""
        self._quiet += 1
        if self._quiet > BEATS:
            self.lose(f"nothing was heard of it for {SILENCE:g} s")
        else:
            self._timer = self._loop.call_later(SILENCE / BEATS, self._listen)

    async def _read(self, size: int) -> memoryview:
        """Exactly ``size`` bytes, in a buffer of their own."""
        # numpy does not zero what is overwritten at once, which a bytearray does.
        taken = np.empty(size, np.uint8).data if size else memoryview(b"")
        filled = 0
        while filled < size:
            if self._start < self._end:
                count = min(size - filled, self._end - self._start)
                taken[filled : filled + count] = self._scratch[self._start : self._start + count]
                self._start += count
                filled += count
            elif size - filled >= _SCRATCH_BYTES:
                filled += await self._fill(taken[filled:])
            else:
                self._start, self._end = 0, await self._fill(self._scratch)
        return taken

    async def _fill(self, buffer: memoryview) -> int:
        await asyncio.sleep(0)  # data that is there already must not keep the other tasks from running
        try:
            count = await self._loop.sock_recv_into(self.socket, buffer)
        except OSError as cause:
            raise ConnectionLost(f"the connection to {self.peer} broke: {cause}") from cause
        if not count:
            raise ConnectionLost(
                f"the connection to {self.peer} ended: {self.reason}" if self.reason else f"{self.peer} ended the connection"
            )
        self._quiet = 0
        return count
