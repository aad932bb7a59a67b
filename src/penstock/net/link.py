"""One connection as frames in and frames out, and how its two ends prove that they belong to the same run.

Takes a connected socket. Frames leave in the order in which they were posted; a frame that has begun is always finished, so
a caller that is cancelled leaves no half frame behind. Large arrays go from where they lie into the socket, and a body is
read into the one buffer its arrays then view.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import socket
from collections import deque
from typing import Any

import numpy as np

from penstock.core.errors import ConnectionLost, WireError
from penstock.net import wire

GREETING_SECONDS = 5.0
"""How long the handshake may take."""

_GREETING_BYTES = 1024  # a stranger can make us read no more than this
_SCRATCH_BYTES = 1 << 18
_TOGETHER_BYTES = 1 << 17


class Link:
    """A socket that carries frames.

    Attributes:
        peer: who is at the other end, for errors.
        lost: whether nothing can be sent any more.
    """

    def __init__(self, connection: socket.socket, peer: str) -> None:
        connection.setblocking(False)
        if connection.family in (socket.AF_INET, socket.AF_INET6):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.peer = peer
        self.lost = False
        self._socket = connection
        self._loop = asyncio.get_running_loop()
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self._start = self._end = 0  # what has been read and not been taken
        self._outbox: deque[tuple[list[wire.Buffer], asyncio.Future[None] | None]] = deque()
        self._sending: list[asyncio.Future[None]] = []
        self._posted = asyncio.Event()
        self._writer = asyncio.create_task(self._write())

    @property
    def waiting(self) -> int:
        """Frames that have not begun to leave."""
        return len(self._outbox)

    def post(self, frame: list[wire.Buffer], sent: asyncio.Future[None] | None = None) -> None:
        """Put a frame behind those that wait to be sent. Who posts bounds how many may wait."""
        if self.lost:
            raise ConnectionLost(f"the connection to {self.peer} has ended")
        self._outbox.append((frame, sent))
        self._posted.set()

    async def send(self, frame: list[wire.Buffer]) -> None:
        """Post a frame and wait until the socket has taken all of it: back-pressure for who sends.

        Raises:
            ConnectionLost: the connection ended before.
        """
        sent: asyncio.Future[None] = self._loop.create_future()
        self.post(frame, sent)
        await sent

    async def receive(self, max_header: int = wire.MAX_HEADER, max_body: int = wire.MAX_BODY) -> Any:
        """The next value.

        Raises:
            ConnectionLost: the connection ended.
            WireError: what came is no frame, or a larger one than may come.
        """
        prelude = await self._read(wire.PRELUDE.size)
        header, body = wire.lengths(prelude, self.peer, max_header, max_body)
        return wire.unpack(await self._read(header), await self._read(body), self.peer)

    async def close(self) -> None:
        """End the connection; what waits to be sent is lost. Nobody may be receiving."""
        self._writer.cancel()
        await asyncio.gather(self._writer, return_exceptions=True)
        self.lose("it was closed here")
        self._socket.close()

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
            count = await self._loop.sock_recv_into(self._socket, buffer)
        except OSError as cause:
            raise ConnectionLost(f"the connection to {self.peer} broke: {cause}") from cause
        if not count:
            raise ConnectionLost(f"{self.peer} ended the connection")
        return count

    async def _write(self) -> None:
        """Takes frames from the outbox, gives them to the socket. Waits for a post, or until the other end reads."""
        try:
            while True:
                await self._posted.wait()
                self._posted.clear()
                while self._outbox:
                    for buffer in self._gather():
                        await self._loop.sock_sendall(self._socket, buffer)
                    for future in self._sending:
                        if not future.done():
                            future.set_result(None)
        except OSError as cause:
            self.lose(str(cause))

    def _gather(self) -> list[wire.Buffer]:
        """Buffers of the next frames, small ones joined: one system call for many small frames."""
        buffers: list[wire.Buffer] = []
        together = bytearray()
        self._sending = []
        while self._outbox and len(buffers) < 2 and len(together) < _TOGETHER_BYTES:
            frame, future = self._outbox.popleft()
            for buffer in frame:
                if len(buffer) < wire.SMALL:
                    together += buffer
                else:
                    buffers += [together, buffer]
                    together = bytearray()
            if future is not None:
                self._sending.append(future)
        return [buffer for buffer in (*buffers, together) if buffer]

    def lose(self, why: str) -> None:
        """Send nothing more: fail those who wait for it, and let both readers see the end."""
        self.lost = True
        for sent in (*self._sending, *(future for _, future in self._outbox)):
            if sent is not None and not sent.done():
                sent.set_exception(ConnectionLost(f"the connection to {self.peer} ended: {why}"))
        self._outbox.clear()
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # it had ended already


async def admit(link: Link, token: str, here: str) -> tuple[str, str]:
    """The server's half of the handshake: (name, role) of who proved to know the run's token. ``here`` is our own name.

    Neither end sends the token, and each proves it: the other one's fresh number is signed with it.

    Raises:
        WireError: what came is no greeting, or its sender does not know the token.
        ConnectionLost: the other end left.
        TimeoutError: it took longer than :data:`GREETING_SECONDS`.
    """
    async with asyncio.timeout(GREETING_SECONDS):
        number = secrets.token_bytes(32)
        await link.send(wire.pack(["challenge", number, here]))
        match await link.receive(_GREETING_BYTES, 0):
            case ["hello", str(name), str(role), bytes(theirs), bytes(proof)]:
                if not hmac.compare_digest(proof, _proof(token, "hello", number, theirs, name, role)):
                    await link.send(wire.pack(["refused"]))
                    raise WireError(f'{link.peer} called itself {role} "{name}" and does not know the token of this run')
            case _:
                raise WireError(f"{link.peer} sent something else than a greeting")
        await link.send(wire.pack(["welcome", _proof(token, "welcome", number, theirs, here)]))
    return name, role


async def introduce(link: Link, token: str, name: str, role: str) -> str:
    """The client's half of the handshake: the server's name. Raises as :func:`admit` does."""
    async with asyncio.timeout(GREETING_SECONDS):
        match await link.receive(_GREETING_BYTES, 0):
            case ["challenge", bytes(theirs), str(there)]:
                number = secrets.token_bytes(32)
            case _:
                raise WireError(f"{link.peer} is no server of Penstock")
        await link.send(wire.pack(["hello", name, role, number, _proof(token, "hello", theirs, number, name, role)]))
        match await link.receive(_GREETING_BYTES, 0):
            case ["welcome", bytes(proof)] if hmac.compare_digest(proof, _proof(token, "welcome", theirs, number, there)):
                return there
            case ["refused"]:
                raise WireError(f"{there} at {link.peer} refused the token; it is not the one of that run")
            case _:
                raise WireError(f"{link.peer} does not know the token of this run; it is another run's server")


def _proof(token: str, *said: str | bytes) -> bytes:
    return hmac.digest(token.encode(), b"".join(wire.pack(list(said))), "sha256")
