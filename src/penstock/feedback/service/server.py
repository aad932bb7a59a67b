"""Serving a store: where it listens, over which transport, and when it refuses to start."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass

from penstock.core.errors import SpecError
from penstock.feedback.service.app import FeedbackApp
from penstock.web.crowd import Connections
from penstock.web.guard import is_loopback
from penstock.web.server import server_of

CONNECTIONS, OF_ONE = 1024, 256
"""Connections open at once, and of one address: an office of annotators may share one. A proxy's are everybody's."""


@dataclass(frozen=True)
class Transport:
    """How clients reach the service.

    Raises:
        SpecError: passwords would travel in the clear, or half of a certificate is given.
    """

    host: str = "127.0.0.1"
    behind_https: bool = False
    """A proxy before us speaks https, passes the Host header on and adds the client to ``X-Forwarded-For``."""
    certificate: str = ""
    key: str = ""

    def __post_init__(self) -> None:
        if bool(self.certificate) != bool(self.key):
            raise SpecError("--certificate and --key go together: two PEM files")
        if not is_loopback(self.host) and not self.https:
            raise SpecError(
                f"--host {self.host}: passwords would travel in the clear; give --certificate FILE --key FILE, or "
                "--behind-https where a proxy that speaks https is in front of it"
            )

    @property
    def https(self) -> bool:
        return self.behind_https or bool(self.certificate)

    @property
    def local(self) -> bool:
        """Whether only this machine is served, by its own names."""
        return is_loopback(self.host) and not self.behind_https


def run(app: FeedbackApp, transport: Transport, listening: socket.socket, ready: Callable[[], None]) -> None:
    """Serve until SIGINT or SIGTERM; then answers under way have a few seconds to end. Calls ``ready`` before the first."""
    tls = (transport.certificate, transport.key) if transport.certificate else None
    try:
        places = Connections(CONNECTIONS, 0 if transport.behind_https else OF_ONE)
        server = server_of(app, app.context.settings.limits.head_seconds, places, tls)
        ready()
        server.run(sockets=[listening])
    finally:
        app.close()
