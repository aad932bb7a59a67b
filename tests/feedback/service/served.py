"""The feedback service over real HTTP: one server for all tests, each with a store and an application of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import ssl
import threading
from collections.abc import Iterator
from typing import Any

import httpx

from penstock.feedback.records import Annotator
from penstock.feedback.service.accounts import Passwords
from penstock.feedback.service.app import FeedbackApp
from penstock.feedback.service.context import Context, Settings
from penstock.feedback.store import Store
from penstock.product.routes import ProductRoutes
from penstock.web.crowd import Connections
from penstock.web.guard import BodyLimits
from penstock.web.server import listen, server_of

QUICK = Passwords(passes=1, memory_kib=8, lanes=1)
"""Hashes that cost nothing."""
PASSWORD = "ten letters long"
HEAD_SECONDS = 0.5
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Shared, since a context of its own costs a client more than a request."""
LIMITS = BodyLimits(body_bytes=2 << 20, body_seconds=0.5, head_seconds=HEAD_SECONDS)


class Desk:
    """The server: whatever application is in ``app`` answers."""

    def __init__(self) -> None:
        self.app: Any = None
        self._listening = listen("127.0.0.1", 0)
        self.port = self._listening.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._server = server_of(self, HEAD_SECONDS, Connections(64))
        self._server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign]  # only a main thread may
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)

    def _run(self) -> None:
        asyncio.run(self._server.serve(sockets=[self._listening]))

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(20)
        self._listening.close()


class Service:
    """One store behind the server."""

    def __init__(self, desk: Desk, store: Store, **settings: Any) -> None:
        self.desk, self.store = desk, store
        self.settings = {"limits": LIMITS, **settings}
        self.restart()

    def restart(self) -> None:
        """A new application over the same store, as after a restart of the process."""
        self.context = Context(self.store, Settings(**self.settings), passwords=QUICK)
        self.app = self.desk.app = FeedbackApp(self.context, ProductRoutes(self.context).routes())

    def enrol(self, name: str, role: str = "annotator", password: str = PASSWORD) -> None:
        self.store.enrol(Annotator(name, role, password=QUICK.made(password)))  # type: ignore[arg-type]

    def client(self, **options: Any) -> httpx.Client:
        """A browser that has been nowhere yet."""
        return httpx.Client(base_url=self.desk.url, trust_env=False, timeout=20, verify=NO_TLS, **options)

    def person(self, name: str, role: str = "annotator") -> Person:
        """Somebody who is enrolled and signed in."""
        self.store.enrol(Annotator(name, role))  # type: ignore[arg-type]
        return Person(self, name)

    def routes(self, *rights: str) -> list[tuple[str, str, Any]]:
        """Paths, methods and routes of those who have these rights."""
        return [
            (path, method, route)
            for path, methods in self.app.routes.items()
            for method, route in methods.items()
            if route.right in rights
        ]

    def says(self, *sent: bytes) -> bytes:
        """What comes back to bytes over a socket, until the server closes the connection."""
        received = b""
        with socket.create_connection(("127.0.0.1", self.desk.port), timeout=20) as connection:
            for part in sent:
                connection.sendall(part)
            with contextlib.suppress(ConnectionResetError):  # a server that closes with something unread resets
                while part := connection.recv(1 << 16):
                    received += part
        return received


class Person:
    """Somebody signed in, with the page's CSRF token."""

    def __init__(self, service: Service, name: str) -> None:
        self.http = service.client()
        self.http.cookies.set("penstock_session", service.context.sessions.begin(name, service.store.annotator(name).password))
        self.http.headers["X-CSRF-Token"] = self.http.get("/api/me").json()["csrf"]
        self.name, self._keys = name, 0

    def get(self, path: str) -> httpx.Response:
        return self.http.get(path)

    def post(self, path: str, **body: Any) -> httpx.Response:
        content = json.dumps(body)  # with half characters as they are, which httpx would refuse to send
        return self.http.post(path, content=content, headers={"Content-Type": "application/json"})

    def key(self) -> str:
        self._keys += 1
        return f"key-of-a-test-{self._keys}"

    def next(self) -> dict[str, Any] | None:
        return self.post("/api/next").raise_for_status().json()["task"]

    def submit(self, task: dict[str, Any] | str, body: Any = None, kind: str = "vote", **more: Any) -> httpx.Response:
        name = task if isinstance(task, str) else task["id"]
        body = {"preference": 1} if body is None else body
        return self.post("/api/submit", **{"key": self.key(), "task": name, "kind": kind, "body": body, **more})

    def undo(self) -> httpx.Response:
        return self.post("/api/undo", key=self.key())


def code(answer: httpx.Response) -> str | None:
    """The code of a refusal."""
    return answer.json()["error"]["code"]


def refusal(answer: httpx.Response) -> tuple[int, str | None]:
    """The status and the code of a refusal."""
    return answer.status_code, code(answer)


def csrf_of(page: httpx.Response) -> str:
    found = re.search(r'name="csrf" value="([0-9a-f]{64})"', page.text)
    assert found, page.text
    return found[1]


def sign_in(client: httpx.Client, name: str, password: str = PASSWORD) -> httpx.Response:
    """Fill in the form as a browser does."""
    csrf = csrf_of(client.get("/sign-in"))
    return client.post("/sign-in", data={"name": name, "password": password, "csrf": csrf})


def strings(value: Any) -> Iterator[str]:
    """Every key and text in a JSON value."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield name
            yield from strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from strings(inner)
    else:
        yield str(value)
