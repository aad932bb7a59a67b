"""Our own HTTP server: an engine behind an OpenAI-compatible API, with the routes of weight updates.

The engine's steps run in the server's event loop, one after the other; requests are read and answered between two of them.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from penstock.serve.guard import Access, Right
from penstock.serve.openai import OpenAIRoutes
from penstock.serve.routes import Routes
from penstock.serve.service import Service
from penstock.serve.sessions import SessionRoutes
from penstock.web.app import App
from penstock.web.crowd import Connections
from penstock.web.server import Server
from penstock.web.server import server_of as plain_server

ANSWERS = ("/v1/completions", "/v1/chat/completions", "/generate", "/score")
"""Routes that the engine answers: how long others take would hide how long these do."""
IDLE_CONNECTIONS = 256
"""Connections besides those whose samples have a place."""


class Route(NamedTuple):
    """A handler, and the right that it takes."""

    handler: Callable[[Request], Awaitable[Response]]
    right: Right = "use"


class InferenceApp(App[Route]):
    """The application over one service."""

    log = logging.getLogger("penstock.serve")

    def __init__(self, service: Service, access: Access, sessions: SessionRoutes | None = None) -> None:
        self.service, self.access = service, access
        self.https = self.forwarded = access.behind_https
        openai, own = OpenAIRoutes(service), Routes(service)
        capture = {} if sessions is None else {
            "/sessions": {"POST": Route(sessions.open)}, "/sessions/{name}/finish": {"POST": Route(sessions.finish)},
        }  # fmt: skip
        super().__init__(
            {
                "/health": {"GET": Route(own.health, "anyone")},
                "/version": {"GET": Route(own.version)},
                "/metrics": {"GET": Route(own.metrics)},
                "/v1/models": {"GET": Route(openai.models)},
                "/v1/models/{name:path}": {"GET": Route(openai.model)},
                "/v1/completions": {"POST": Route(openai.completions)},
                "/v1/chat/completions": {"POST": Route(openai.chat)},
                "/generate": {"POST": Route(own.generate)},
                "/score": {"POST": Route(own.score)},
                "/abort": {"POST": Route(own.abort, "change")},
                "/pause": {"POST": Route(own.pause, "change")},
                "/resume": {"POST": Route(own.resume, "change")},
                "/weights": {"POST": Route(own.receive, "change"), "PUT": Route(own.upload, "change")},
                "/weights/group": {"POST": Route(own.group, "change")},
                "/weights/sums": {"GET": Route(own.sums, "change")},
            }
            | capture
        )

    async def permit(self, request: Request, route: Route | None) -> None:
        self.access.check(route.right if route else "use", request.headers)

    async def answer(self, request: Request, route: Route) -> Response:
        return await route.handler(request)

    def answered(self, path: str, status: int, seconds: float) -> None:
        self.service.metrics.requests[path, status] += 1
        if path in ANSWERS:
            self.service.metrics.answered.observe(seconds)


def server_of(service: Service, access: Access, sessions: SessionRoutes | None = None) -> Server:
    """A server that is ready to :meth:`run` on sockets; with ``sessions`` it captures programs, too."""
    places = Connections(service.limits.room + IDLE_CONNECTIONS)
    return plain_server(InferenceApp(service, access, sessions), service.limits.head_seconds, places)


def run(service: Service, access: Access, listening: socket.socket, sessions: SessionRoutes | None = None) -> None:
    """Serve until SIGINT or SIGTERM; then answers under way have a few seconds to end."""
    server_of(service, access, sessions).run(sockets=[listening])
