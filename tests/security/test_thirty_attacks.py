"""Thirty attacks, as docs/security.md lists them: each has tests that hold it, or says what it waits for; and what the three
HTTP servers share is tried on each of them, over real sockets.
"""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import random
import re
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

pytest.importorskip("httpx", reason="needs the extra serve")
pytest.importorskip("sqlalchemy", reason="needs the extra feedback")
pytest.importorskip("argon2", reason="needs the extra feedback")
pytest.importorskip("markdown_it", reason="needs the extra feedback")

import httpx

from penstock.cli.commands.feedback_serve import Serve as FeedbackServe
from penstock.cli.commands.serve import Serve
from penstock.cli.commands.ui import Ui
from penstock.core.errors import SpecError
from penstock.feedback.service.accounts import Passwords
from penstock.feedback.service.app import FeedbackApp
from penstock.feedback.service.context import Context, Settings
from penstock.feedback.store import Store
from penstock.product.routes import ProductRoutes
from penstock.serve.guard import Access
from penstock.serve.metrics import Metrics
from penstock.serve.server import InferenceApp
from penstock.serve.service import Limits
from penstock.ui.live.app import Access as PageAccess
from penstock.ui.live.app import app_of
from penstock.web.crowd import Connections
from penstock.web.server import listen, server_of, warn_of_the_clear

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "a-token-of-the-tests-of-some-length"
SERVERS = ("feedback", "ui", "serve")
CHANGES = {
    "feedback": ("/api/submit", "/api/undo", "/api/admin/annotators", "/v1/feedback"),
    "ui": ("/api/ask",),
    "serve": ("/pause", "/resume", "/abort", "/weights", "/weights/group", "/generate", "/score", "/v1/completions"),
}
"""Routes of each server that change something or cost something."""
HEAD_SECONDS = 0.5


class Server(NamedTuple):
    """One of ours, listening, and a client of it."""

    name: str
    port: int
    http: httpx.Client

    def says(self, *sent: bytes) -> bytes:
        """What it answers to bytes, until it closes the connection."""
        received = b""
        with socket.create_connection(("127.0.0.1", self.port), timeout=20) as connection:
            with contextlib.suppress(OSError):
                for part in sent:
                    connection.sendall(part)
            with contextlib.suppress(ConnectionResetError):
                while part := connection.recv(1 << 16):
                    received += part
        return received

    def lives(self) -> bool:
        return self.http.get("/health").status_code == 200

    def head(self, length: int, *more: str) -> bytes:
        """Of a request that would change something, with a body of so many bytes."""
        lines = [f"POST {CHANGES[self.name][0]} HTTP/1.1", "Host: localhost", "Content-Type: application/json", *more]
        return ("\r\n".join([*lines, f"Content-Length: {length}"]) + "\r\n\r\n").encode()


def inference() -> InferenceApp:
    """An inference server whose engine is never reached: every attack ends before it."""
    service: Any = SimpleNamespace(limits=Limits(), metrics=Metrics(), name="tiny", paused=False, receiver=None)
    return InferenceApp(service, Access(token=TOKEN))


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Server]]:
    """All three, in one thread, with limits as short as a test needs them."""
    folder = tmp_path_factory.mktemp("attacked")
    store = Store.open(folder / "feedback.db")
    context = Context(store, Settings(), Passwords(passes=1, memory_kib=8, lanes=1))
    feedback = FeedbackApp(context, ProductRoutes(context).routes())
    apps = {"feedback": feedback, "ui": app_of(folder, PageAccess(TOKEN)), "serve": inference()}
    listening = {name: listen("127.0.0.1", 0) for name in apps}
    running = {name: server_of(app, HEAD_SECONDS, Connections(64)) for name, app in apps.items()}
    for server in running.values():
        server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign]

    async def serve() -> None:
        await asyncio.gather(*(server.serve(sockets=[listening[name]]) for name, server in running.items()))

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    ports = {name: socket_.getsockname()[1] for name, socket_ in listening.items()}
    clients = {name: httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) for name, port in ports.items()}
    yield {name: Server(name, ports[name], client) for name, client in clients.items()}
    for client in clients.values():
        client.close()
    for server in running.values():
        server.should_exit = True
    thread.join(20)
    for socket_ in listening.values():
        socket_.close()
    feedback.close()
    store.close()


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest, servers: dict[str, Server]) -> Server:
    return servers[request.param]


def attacks() -> list[tuple[int, str]]:
    """The rows of the page: a number, and what holds it."""
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    return [(int(found[1]), found[2]) for found in re.finditer(r"^\| (\d+) \|[^|]*\|[^|]*\|([^|]*)\|$", page, re.MULTILINE)]


def test_every_attack_has_its_row() -> None:
    assert [number for number, _ in attacks()] == list(range(1, 31))


@pytest.mark.parametrize(("number", "held"), attacks())
def test_what_is_said_to_hold_an_attack_is_there(number: int, held: str) -> None:
    """Attack 30 waits for federated learning: it is named and not faked."""
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", held)
    assert bool(named) != held.strip().startswith("open:"), f"attack {number}"
    for file, test in named:
        assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file}::{test}"


def test_03_no_path_leads_out_of_a_servers_files(server: Server) -> None:
    inside, outside = ("/static/../../app.py", "/static/%2e%2e%2fapp.py"), ("/..%2f..%2fetc/passwd", "//etc/passwd")
    for path in (*inside, *outside, "/static//etc/passwd"):
        said = server.says(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        assert said[9:12] in (b"404", b"401"), (path, said[:200])


def test_13_nothing_is_changed_without_a_secret(server: Server) -> None:
    for path in CHANGES[server.name]:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"X-Penstock-Token": "wrong", "X-CSRF-Token": "wrong"}):
            answer = server.http.post(path, json={}, headers=headers)
            assert answer.status_code in (401, 403), (path, answer.status_code)
    assert server.lives()


def test_13_servers_listen_on_this_machine_alone_unless_asked_otherwise() -> None:
    assert {kind.host for kind in (Serve, Ui, FeedbackServe)} == {"127.0.0.1"}


@pytest.mark.parametrize("local", [True, False])
def test_13_behind_a_proxy_on_this_machine_other_names_are_served_and_a_token_is_needed(local: bool) -> None:
    if not local:
        with pytest.raises(SpecError, match="--token-file"):
            Access(behind_https=True)
    access = Access(token=TOKEN, behind_https=not local)
    assert access.local == local
    headers = {"host": "llm.example", "authorization": f"Bearer {TOKEN}"}
    with pytest.raises(Exception, match="answers to") if local else contextlib.nullcontext():
        access.check("change", headers)


def test_13_who_opens_a_server_without_https_is_warned(capsys: pytest.CaptureFixture[str]) -> None:
    for host, https in (("127.0.0.1", False), ("0.0.0.0", True), ("0.0.0.0", False)):
        warn_of_the_clear(host, https)
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "tokens travel in the clear" in said


def test_17_random_and_pickled_bytes_end_their_own_connection_only(server: Server) -> None:
    noise = random.Random(0).randbytes(4096) + b"\r\n\r\n"
    for garbage in (noise, pickle.dumps([sys.version] * 50) + b"\r\n\r\n", b"\x16\x03\x01\x02\x00" + noise, b"\0" * 9000):
        assert server.says(garbage)[:12] in (b"", b"HTTP/1.1 400")
    body = pickle.dumps({"weights": [1.0]})
    said = server.says(server.head(len(body), "Connection: close") + body)
    assert said[9:12] in (b"401", b"403")
    assert server.lives()


def test_18_pages_run_nothing_but_their_own_files(servers: dict[str, Server]) -> None:
    for name, path in (("feedback", "/sign-in"), ("ui", "/")):
        policy = servers[name].http.get(path).headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self';")
        assert "unsafe" not in policy


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "192.168.0.1:8900", "[::2]:80", ""])
def test_19_another_name_for_this_machine_is_refused(server: Server, host: str) -> None:
    assert server.http.get("/health", headers={"Host": host}).status_code == 421


def test_19_pages_of_other_sites_are_refused(server: Server) -> None:
    headers = {"Origin": "https://evil.example", "Authorization": f"Bearer {TOKEN}", "X-Penstock-Token": TOKEN}
    answer = server.http.post(CHANGES[server.name][0], json={}, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "foreign_origin")


def test_21_a_head_that_does_not_end_is_hung_up_on(server: Server) -> None:
    assert server.says(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Slow: ") == b""


def test_21_a_huge_body_of_a_stranger_is_refused_unread(server: Server) -> None:
    assert server.says(server.head(1 << 30) + b"{")[9:12] in (b"401", b"403")


def test_head_is_answered_as_get_is(server: Server) -> None:
    for path in ("/health", *(["/sign-in"] if server.name == "feedback" else [])):
        answer = server.http.head(path)
        assert (answer.status_code, answer.content) == (200, b"")


def test_https_is_remembered_by_browsers_only_where_it_is_spoken(servers: dict[str, Server]) -> None:
    plain = servers["serve"].http.get("/health")
    assert "strict-transport-security" not in plain.headers
    access = Access(token=TOKEN, behind_https=True)
    app = InferenceApp(inference().service, access)

    async def over() -> Any:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://llm.example") as client:
            return await client.get("/health")

    answer = asyncio.run(over())
    assert (answer.status_code, answer.headers["strict-transport-security"]) == (200, "max-age=31536000")


def test_a_run_folder_is_its_owners_alone(tmp_path: Path) -> None:
    from penstock.algos import SFT
    from penstock.config.run import DataSpec, ModelSpec, Offline, Run
    from penstock.runtime.folder import RunFolder

    stage = Offline(name="sft", model=ModelSpec(path="x"), data=DataSpec(source="x.jsonl"), algorithm=SFT(), steps=1, batch=1)
    folder = RunFolder(tmp_path / "runs" / "mine")
    folder.begin(Run(name="mine", stages=(stage,))).close()
    assert folder.path.stat().st_mode & 0o777 == 0o700
