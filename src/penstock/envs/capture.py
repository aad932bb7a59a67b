"""The server that agents call: an API key is one episode, and what is answered under it becomes that episode's turns."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import secrets
import weakref
from collections import OrderedDict
from collections.abc import AsyncGenerator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from penstock.envs.apis import APIS, AgentRequest, Api, Reply
from penstock.web.app import App, unless_gone
from penstock.web.chat import event
from penstock.web.crowd import Connections
from penstock.web.guard import BodyLimits, bearer, read_json
from penstock.web.refusals import Refusal
from penstock.web.server import listen, server_of

WAITING = 256
"""Calls of one episode that may wait for their answers."""
OVER = 4096
"""Keys of episodes that are over and are remembered, to say so."""
REMEMBERED = 64
"""Answers of one episode that are kept for a client that asks the same again because its connection broke."""
CONNECTIONS = 4096
ENDED = "this episode is over; its calls are not answered any more"


@dataclass
class Pending:
    """A call that waits for the policy."""

    asked: AgentRequest
    answer: asyncio.Future[Reply]
    clients: int = 0
    """Connections that wait for it: with none it is not worth generating, and an answer that none heard is not trained."""


@dataclass
class Session:
    """The calls of one episode, answered one after another in the order in which they came."""

    key: str
    calls: asyncio.Queue[Pending] = field(default_factory=lambda: asyncio.Queue(WAITING))
    over: bool = False
    _kept: OrderedDict[str, Pending] = field(default_factory=OrderedDict)

    async def answered(self, asked: AgentRequest, digest: str, again: bool, request: Request) -> Reply:
        """The policy's reply. ``again``: the client says that it repeats a call whose answer it did not get, which is then
        not a second turn.

        Raises:
            Refusal: the episode is over, or too many calls wait.
            ClientDisconnect: the client has left.
        """
        if self.over:
            raise Refusal(409, ENDED, code="session_over")
        pending = self._kept.get(digest) if again else None
        if pending is None:
            pending = Pending(asked, asyncio.get_running_loop().create_future())
            try:
                self.calls.put_nowait(pending)
            except asyncio.QueueFull:
                raise Refusal(429, f"{WAITING} calls of this episode wait already", headers={"Retry-After": "1"}) from None
            self._kept[digest] = pending
            while len(self._kept) > REMEMBERED:
                self._kept.popitem(last=False)
        pending.clients += 1
        try:
            return await unless_gone(request.receive, asyncio.shield(pending.answer))
        except ClientDisconnect:
            pending.clients -= 1
            raise

    def close(self) -> None:
        """Answer no more calls."""
        self.over = True
        for pending in self._kept.values():
            _refuse(pending)
        while not self.calls.empty():
            _refuse(self.calls.get_nowait())


def _refuse(pending: Pending) -> None:
    if not pending.answer.done():
        pending.answer.set_exception(Refusal(409, ENDED, code="session_over"))
        pending.answer.exception()  # it may be that nobody waits


class CaptureApp(App[Api | None]):
    """Routes of three APIs over the sessions of this process."""

    log = logging.getLogger("penstock.capture")

    def __init__(self) -> None:
        self.sessions: dict[str, Session] = {}
        self.ended: OrderedDict[str, None] = OrderedDict()
        self.limits = BodyLimits(body_bytes=16 << 20)
        posts: dict[str, dict[str, Api | None]] = {path: {"POST": api} for path, api in APIS.items()}
        super().__init__(posts | {"/v1/models": {"GET": None}})

    def open(self) -> Session:
        """A new session, under a key of its own."""
        session = Session("sk-" + secrets.token_urlsafe(24))
        self.sessions[session.key] = session
        return session

    def close(self, session: Session) -> None:
        """End a session; who still calls under its key is refused."""
        session.close()
        self.sessions.pop(session.key, None)
        self.ended[session.key] = None
        while len(self.ended) > OVER:
            self.ended.popitem(last=False)

    async def permit(self, request: Request, route: Api | None) -> None:
        key = bearer(request.headers) or request.headers.get("x-api-key", "")
        if key in self.ended:
            raise Refusal(409, ENDED, code="session_over")
        if key not in self.sessions:
            raise Refusal(
                401, "this key is no episode's; use the key that the program was started with", code="invalid_api_key"
            )
        request.state.session = self.sessions[key]

    async def answer(self, request: Request, route: Api | None) -> Response:
        if route is None:
            return JSONResponse({"object": "list", "data": [{"id": "policy", "object": "model", "owned_by": "penstock"}]})
        body = await read_json(request, self.limits)
        digest = hashlib.sha256(json.dumps([request.url.path, body], sort_keys=True).encode()).hexdigest()
        again = request.headers.get("x-stainless-retry-count", "0") not in ("", "0")
        asked = route.asked(body)
        reply = await request.state.session.answered(asked, digest, again, request)
        if asked.stream:
            return StreamingResponse(_sent(route, asked, reply), media_type="text/event-stream")
        return JSONResponse(route.whole(asked, reply))


async def _sent(api: Api, asked: AgentRequest, reply: Reply) -> AsyncGenerator[bytes, None]:
    for name, value in api.events(asked, reply):
        yield event(value, name)


class Capture:
    """The server of an event loop, on a free port of this machine's loopback address."""

    def __init__(self) -> None:
        self.app = CaptureApp()
        listening = listen("127.0.0.1", 0)
        self.address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        server = server_of(self.app, self.app.limits.head_seconds, Connections(CONNECTIONS))
        server.capture_signals = _no_signals  # type: ignore[method-assign]  # they are the run's, not this server's
        self.serving = asyncio.ensure_future(_served(server, listening))


@contextmanager
def _no_signals() -> Any:
    yield


async def _served(server: uvicorn.Server, listening: Any) -> None:
    with suppress(asyncio.CancelledError):
        await server.serve(sockets=[listening])


_SERVERS: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Capture] = weakref.WeakKeyDictionary()


def capture() -> Capture:
    """The server of the running loop, started by its first episode; it ends with the loop."""
    loop = asyncio.get_running_loop()
    if loop not in _SERVERS:
        _SERVERS[loop] = Capture()
    return _SERVERS[loop]
