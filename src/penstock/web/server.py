"""How a server of ours listens, how long it waits for a client, and how it ends."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from penstock.core.errors import SpecError
from penstock.web.crowd import Connections, block_of
from penstock.web.guard import is_loopback

SHUTDOWN_GRACE = 5.0
"""Seconds in which answers in progress may end once the server is stopping."""


def patient(seconds: float, places: Connections) -> type[H11Protocol]:
    """The protocol of a connection on which a request's first lines must come within ``seconds``, if it has a place."""

    class Patient(H11Protocol):
        _head: asyncio.TimerHandle | None = None
        _address = ""

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._wait()
            self._address = block_of((self.client or ("", 0))[0])
            places.add(self._address, self)

        def busy(self) -> bool:
            return self.cycle is not None and not (self.cycle.response_complete or self.cycle.more_body)

        def close(self) -> None:
            self.transport.abort()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is not None and not self.cycle.response_complete:
                self._stop()
            elif self._head is None:
                self._wait()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop()
            places.discard(self._address, self)
            super().connection_lost(exc)

        def _wait(self) -> None:
            self._head = self.loop.call_later(seconds, self.transport.close)

        def _stop(self) -> None:
            if self._head is not None:
                self._head.cancel()
                self._head = None

    return Patient


class Server(uvicorn.Server):
    """Ends on SIGINT or SIGTERM, as a server should; on the second at once."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop, both = asyncio.get_running_loop(), (signal.SIGINT, signal.SIGTERM)
        for number in both:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in both:
                loop.remove_signal_handler(number)


def warn_of_the_clear(host: str, https: bool) -> None:
    """Say on standard error that a server which other machines reach by http can be listened to."""
    if not is_loopback(host) and not https:
        print(
            f"warning: --host {host} without https: tokens travel in the clear; put a proxy that speaks https in front and "
            "give --behind-https (docs/security.md)", file=sys.stderr, flush=True,
        )  # fmt: skip


def listen(host: str, port: int) -> socket.socket:
    """A socket that takes connections; port 0 lets the system choose one.

    Raises:
        SpecError: the port is taken, or there is no such address here.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        # Where the protocol is named, asyncio lets connections send what they have at once (TCP_NODELAY). Otherwise the body of
        # an answer waits until the client has acknowledged the head, 40 ms on Linux.
        made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(1024)
    except (OSError, OverflowError) as error:
        raise SpecError(f"--host {host} --port {port}: {getattr(error, 'strerror', None) or error}; choose another "
                        "(--port 0 takes a free one)") from error  # fmt: skip
    return made


def server_of(app: ASGIApp, head_seconds: float, places: Connections, tls: tuple[str, str] | None = None) -> Server:
    """A server of an ASGI application that is ready to :meth:`run` on sockets.

    Args:
        head_seconds: in which a request's first lines must have come.
        places: for connections.
        tls: PEM files of a certificate (with its chain) and its key, to speak https.

    Raises:
        SpecError: the certificate or the key cannot be read.
    """
    config = uvicorn.Config(
        app,
        http=patient(head_seconds, places),
        ws="none",
        lifespan="off",
        loop="asyncio",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=1024,
        timeout_graceful_shutdown=int(SHUTDOWN_GRACE),
        ssl_certfile=tls[0] if tls else None,
        ssl_keyfile=tls[1] if tls else None,
    )
    try:
        config.load()
    except OSError as error:  # an SSLError is one too
        raise SpecError(f"certificate {tls}: {error.strerror or error}") from error
    return Server(config)
