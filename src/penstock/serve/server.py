"""Our own HTTP server: an engine behind an OpenAI-compatible API, with the routes of weight updates.

The engine's steps run in the server's event loop, one after the other; requests are read and answered between two of them.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Awaitable, Callable, Mapping

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send

from penstock.serve.guard import Access, Right
from penstock.serve.openai import OpenAIRoutes
from penstock.serve.routes import Routes
from penstock.serve.service import Service
from penstock.web.refusals import Refusal, refusal_of
from penstock.web.server import Server
from penstock.web.server import server_of as plain_server

Handler = Callable[[Request], Awaitable[Response]]
MODELS = "/v1/models/"
"""What the path of a model begins with."""
ANSWERS = ("/v1/completions", "/v1/chat/completions", "/generate", "/score")
"""Routes that the engine answers: how long others take would hide how long these do."""
IDLE_CONNECTIONS = 256
"""Connections beside those whose samples have a place."""

log = logging.getLogger("penstock.serve")


class App:
    """The ASGI application: finds the handler of a path, checks the right to it, and says no in one shape."""

    def __init__(self, service: Service, access: Access) -> None:
        self.service, self.access = service, access
        talk, own = OpenAIRoutes(service), Routes(service)
        self._model = talk.model
        self.routes: Mapping[str, Mapping[str, tuple[Handler, Right]]] = {
            "/health": {"GET": (own.health, "anyone")},
            "/version": {"GET": (own.version, "use")},
            "/metrics": {"GET": (own.metrics, "use")},
            "/v1/models": {"GET": (talk.models, "use")},
            "/v1/completions": {"POST": (talk.completions, "use")},
            "/v1/chat/completions": {"POST": (talk.chat, "use")},
            "/generate": {"POST": (own.generate, "use")},
            "/score": {"POST": (own.score, "use")},
            "/abort": {"POST": (own.abort, "change")},
            "/pause": {"POST": (own.pause, "change")},
            "/resume": {"POST": (own.resume, "change")},
            "/weights": {"POST": (own.receive, "change"), "PUT": (own.upload, "change")},
            "/weights/group": {"POST": (own.group, "change")},
            "/weights/sums": {"GET": (own.sums, "change")},
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        status, began = 0, time.perf_counter()

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            response = await self._answer(scope, receive)
            await response(scope, receive, watched)
        except ClientDisconnect:
            status = status or 499
        except Exception as error:
            if status:  # it has begun, so nothing can be said any more
                raise
            refusal = refusal_of(error)
            if refusal.status == 500:
                log.exception("%s %s failed", scope["method"], scope["path"], exc_info=error)
            await JSONResponse(refusal.body, refusal.status, headers=refusal.headers)(scope, receive, watched)
        finally:
            route = scope["path"] if scope["path"] in self.routes else "other"
            self.service.metrics.requests[route, status] += 1
            if route in ANSWERS:
                self.service.metrics.answered.observe(time.perf_counter() - began)

    async def _answer(self, scope: Scope, receive: Receive) -> Response:
        path, method = scope["path"], scope["method"]
        methods = self.routes.get(path)
        if methods is None and path.startswith(MODELS):
            scope["path_params"] = {"name": path.removeprefix(MODELS)}
            methods = {"GET": (self._model, "use")}
        headers = Headers(scope=scope)
        if methods is None:
            self.access.check("use", headers)
            raise Refusal(404, f"there is nothing at {path[:100]}")
        if method not in methods:
            self.access.check("use", headers)
            allowed = ", ".join(methods)
            raise Refusal(405, f"{path[:100]} takes {allowed}, not {method[:20]}", headers={"Allow": allowed})
        handler, right = methods[method]
        self.access.check(right, headers)
        return await handler(Request(scope, receive))


def server_of(service: Service, access: Access) -> Server:
    """A server that is ready to :meth:`run` on sockets."""
    return plain_server(App(service, access), service.limits.head_seconds, service.limits.room + IDLE_CONNECTIONS)


def run(service: Service, access: Access, listening: socket.socket) -> None:
    """Serve until SIGINT or SIGTERM; then answers under way have a few seconds to end."""
    server_of(service, access).run(sockets=[listening])
