"""The one way into every HTTP server of ours: which route, who may, then what is read; and one shape of saying no."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Mapping
from typing import Any, ClassVar, Generic, TypeVar

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import compile_path
from starlette.types import Message, Receive, Scope, Send

from penstock.web.crowd import LEAST, block_of
from penstock.web.refusals import Refusal, refusal_of

Route = TypeVar("Route")
Result = TypeVar("Result")
UNKNOWN = "other"
"""How a path that has no route is called: what a client made up is in no log and in no count."""
LINGER = 1.0
"""Seconds for which a connection stays open, unread, after an answer to a long body that was not read: in which the client
reads the answer, and sends no other body."""


class App(ABC, Generic[Route]):
    """An ASGI application over routes: path (with ``{name}`` for what varies) to method to whatever a route is to it.

    :meth:`permit` comes before :meth:`answer`, which alone may read a body.
    """

    headers: ClassVar[Mapping[str, str]] = {}
    """Sent with everything; a response may say otherwise."""
    log: logging.Logger
    forwarded = False
    """Whether a proxy of ours is in front, which adds the client's address as the last one of ``X-Forwarded-For``."""
    https = False
    """Whether browsers come by https, and are to come by nothing else from now on (HSTS)."""

    def __init__(self, routes: Mapping[str, Mapping[str, Route]]) -> None:
        self.routes = routes
        self._patterns = [(*compile_path(path), path) for path in routes]

    @abstractmethod
    async def permit(self, request: Request, route: Route | None) -> None:
        """Raises Refusal where this client may not use a route, or (None) ask for a path or method that there is not."""

    @abstractmethod
    async def answer(self, request: Request, route: Route) -> Response:
        """Read the request and carry it out."""

    def refused(self, refusal: Refusal, request: Request, route: Route | None) -> Response:
        """How a client is refused."""
        return JSONResponse(refusal.body, refusal.status, headers=refusal.headers)

    def refusal_of(self, error: Exception) -> Refusal:
        """What an error is to a client."""
        return refusal_of(error)

    def answered(self, path: str, status: int, seconds: float) -> None:
        """Called at the end of every request, with the route's path (or UNKNOWN) and its status; 499: the client has left."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        began = time.perf_counter()
        path, params = self._find(scope["path"])
        methods, status, unread = self.routes.get(path, {}), 0, has_long_body(scope)
        route = methods.get("GET" if scope["method"] == "HEAD" else scope["method"])

        async def read() -> Message:
            nonlocal unread
            message = await receive()
            unread = unread and message.get("more_body", False)
            return message

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in self.headers.items():
                    headers.setdefault(name, value)
                if self.https:
                    headers.setdefault("Strict-Transport-Security", "max-age=31536000")
                if unread:
                    headers["Connection"] = "close"
            elif unread and not message.get("more_body"):  # the answer is out, and what is left of the body is not read
                await send({**message, "more_body": True})
                await asyncio.sleep(LINGER)
                message = {"type": "http.response.body", "body": b""}
            await send(message)

        request = Request({**scope, "path_params": params, "client": (self._client(scope), 0)}, read)
        try:
            with contextlib.ExitStack() as held:
                request.state.held = held
                await self.permit(request, route)
                response = await self.answer(request, self._existing(route, request, methods))
                await response(scope, read, watched)
        except ClientDisconnect:
            status = status or 499
        except Exception as error:
            if status:  # it has begun, so nothing can be said any more
                raise
            refusal = self.refusal_of(error)
            if refusal.status >= 500:  # never the path itself: a secret may be in it
                self.log.error("%s %s failed", scope["method"], path, exc_info=error)
            await self.refused(refusal, request, route)(scope, read, watched)
        finally:
            self.answered(path, status, time.perf_counter() - began)

    def _client(self, scope: Scope) -> str:
        """Where the client is: behind a proxy of ours what that one wrote last, otherwise the other end of the connection."""
        hops = Headers(scope=scope).getlist("x-forwarded-for") if self.forwarded else []
        last = ",".join(hops).rpartition(",")[2].strip()
        return block_of(last or (scope.get("client") or ("", 0))[0])

    def _find(self, path: str) -> tuple[str, dict[str, Any]]:
        """The route's path, and what it has for its names."""
        if path in self.routes and "{" not in path:
            return path, {}
        for pattern, _, convertors, known in self._patterns:
            if found := pattern.match(path):
                return known, {name: convertors[name].convert(value) for name, value in found.groupdict().items()}
        return UNKNOWN, {}

    def _existing(self, route: Route | None, request: Request, methods: Mapping[str, Route]) -> Route:
        where = request.url.path[:100]
        if not methods:
            raise Refusal(404, f"there is nothing at {where}", code="not_found")
        if route is None:
            allowed = ", ".join(methods)
            raise Refusal(405, f"{where} takes {allowed}, not {request.method[:20]}", headers={"Allow": allowed})
        return route


def has_long_body(scope: Scope) -> bool:
    """Whether a request announces a body that may not have come with its head."""
    headers = Headers(scope=scope)
    length = headers.get("content-length", "0")
    return "transfer-encoding" in headers or not length.isdecimal() or len(length) > 9 or int(length) > LEAST


async def unless_gone(receive: Receive, work: Awaitable[Result]) -> Result:
    """Do some work for a client whose request has been read whole; give it up when the client leaves.

    Raises:
        ClientDisconnect: it has left.
    """
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        for left in (task, gone):
            left.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
