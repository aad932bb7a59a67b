"""What a stranger can do to the feedback service: how long others wait meanwhile, and how much memory it takes.

    python benchmarks/strangers.py --seconds 10

A real ``penstock feedback serve`` on a store of its own. From 127.0.0.1 a process attacks it (:data:`ATTACKS`); from 127.0.0.2
one client asks for ``/health`` and an annotator who is signed in asks who they are. Prints JSON: of each attack milliseconds to
answer (median, 99th percentile), answers other than 200, and the service's largest memory so far.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import json
import multiprocessing
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.feedback.records import Annotator
from penstock.feedback.service.sessions import Sessions
from penstock.feedback.store import Store
from penstock.product.tenants import new_token

BODY = b'{"signals": [' + b"[0, 1.5]," * 230_000 + b"0]}"
"""Two megabytes of JSON."""
PATHS = ("/v1/feedback", "/api/submit", "/sign-in")
REST = 1.0
"""Seconds before a connection that was closed is made again by those who hold many."""
ELSEWHERE = "127.0.0.2"


def head(path: str, length: int, *more: str) -> bytes:
    kind = "application/x-www-form-urlencoded" if path == "/sign-in" else "application/json"
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Type: {kind}", f"Content-Length: {length}", *more]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def large(port: int, place: int, token: str) -> None:
    """Post two megabytes, read what is said, and again."""
    path, more = (PATHS[0], (f"Authorization: Bearer {token}",)) if token else (PATHS[place % 3], ())
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        while True:
            writer.write(head(path, len(BODY), *more) + BODY)
            await writer.drain()
            if not await reader.read(1 << 16):
                return
    finally:
        writer.close()


async def half(port: int, place: int, _: str) -> None:
    """All of a body but its last byte; then nothing."""
    path = PATHS[place % 3]
    length = 16_000 if path == "/sign-in" else len(BODY)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(head(path, length) + BODY[: length - 1])
        await writer.drain()
        while await reader.read(1 << 16):
            pass
    finally:
        writer.close()


async def slow(port: int, place: int, _: str) -> None:
    """A byte of a form each second."""
    _reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(head("/sign-in", 16_000))
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(1)
    finally:
        writer.close()


Client = Callable[[int, int, str], Awaitable[None]]
ATTACKS: dict[str, tuple[Client, int, bool]] = {
    "4 connections post 2 MiB in a loop": (large, 4, False),
    "4 connections of a product with a token do": (large, 4, True),
    "300 bodies without an end": (half, 300, False),
    "1,080 slow posts": (slow, 1080, False),
}


def attack(name: str, port: int, token: str) -> None:
    """Attack until the process is ended."""
    client, count, known = ATTACKS[name]

    async def again(place: int) -> None:
        while True:
            with contextlib.suppress(OSError):
                await client(port, place, token if known else "")
            await asyncio.sleep(REST if count > 4 else 0.0)

    async def together() -> None:
        await asyncio.gather(*(again(place) for place in range(count)))

    asyncio.run(together())


def asked(port: int, path: str, cookie: str, until: float) -> dict[str, Any]:
    """Ask for a path again and again from another address; milliseconds, and answers other than 200."""
    took, wrong = [], 0
    while time.monotonic() < until:
        began = time.perf_counter()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30, source_address=(ELSEWHERE, 0))
        try:
            connection.request("GET", path, headers={"Host": "localhost", "Cookie": cookie})
            wrong += connection.getresponse().status != 200
        except OSError:
            wrong += 1
        finally:
            connection.close()
        took.append(1000 * (time.perf_counter() - began))
        time.sleep(0.02)
    ranked = sorted(took)
    return {"asked": len(took), "failed": wrong, "p50": statistics.median(took), "p99": ranked[int(0.99 * (len(ranked) - 1))]}


def megabytes(process: int) -> float:
    """The largest memory that a process has had."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    assert found
    return int(found[1]) / 1000


def under(name: str, port: int, token: str, cookie: str, seconds: float) -> dict[str, Any]:
    """What others see while an attack goes on; none for an empty name."""
    attacking = multiprocessing.get_context("spawn").Process(target=attack, args=(name, port, token), daemon=True)
    if name:
        attacking.start()
        time.sleep(2.0)
    found: dict[str, Any] = {}
    until = time.monotonic() + seconds
    threads = [
        threading.Thread(target=lambda path=path: found.update({path: asked(port, path, cookie, until)}))  # type: ignore[misc]
        for path in ("/health", "/api/me")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if name:
        attacking.terminate()
        attacking.join()
    return found


@contextmanager
def service(folder: Path) -> Iterator[tuple[subprocess.Popen[str], int, str, str]]:
    """A service that runs while the block does: its process, port, a product's token, and the cookie of an annotator."""
    place = folder / "feedback.db"
    with Store.open(place) as store:
        store.enrol(Annotator("ann"))
        cookie = f"penstock_session={Sessions(store.database, store.now).begin('ann')}"
        token = new_token(store, "shop")
    code = "import sys; from penstock.cli.main import main; sys.exit(main())"
    words = [sys.executable, "-c", code, "feedback", "serve", str(place), "--port", "0"]
    process = subprocess.Popen(words, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert process.stdout
        found = re.search(r":(\d+) ·", process.stdout.readline())
        assert found
        yield process, int(found[1]), token, cookie
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def measure(seconds: float) -> dict[str, Any]:
    """Every attack in turn, on one service."""
    made: dict[str, Any] = {"cores": os.cpu_count()}
    with tempfile.TemporaryDirectory() as folder, service(Path(folder)) as (process, port, token, cookie):
        for name in ("", *ATTACKS):
            made[name or "nobody attacks"] = found = under(name, port, token, cookie, seconds)
            found["megabytes"] = megabytes(process.pid)
            print(json.dumps({name: found}), file=sys.stderr, flush=True)
    return made


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0)
    print(json.dumps(measure(parser.parse_args().seconds), indent=2))
