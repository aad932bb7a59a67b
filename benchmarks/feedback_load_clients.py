"""The annotators of ``feedback_load.py``: a process of its own that imports nothing but the standard library.

    python feedback_load_clients.py FOLDER

``FOLDER/clients.json`` says where to and how; ``FOLDER/acknowledged`` gets a line for each event that the service has
acknowledged, written after the answer came. Each annotator looks at a task, fetches the next one meanwhile, thinks, and submits
under a key of its own until the service answers, whatever happens to it in between.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

PATIENCE = 300.0
"""Seconds in which the service must be there again."""
LONGEST_WAIT = 30.0
"""Seconds between two attempts."""
LOST = (OSError, EOFError, asyncio.TimeoutError)
"""What a killed service looks like from outside."""


class Shared:
    """What the annotators of this process share: settings, latencies, and the file of what was acknowledged."""

    def __init__(self, folder: Path) -> None:
        self.settings: dict[str, Any] = json.loads((folder / "clients.json").read_text())
        self.file = os.open(folder / "acknowledged", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        self.votes, self.stop = 0, False
        self.up: dict[str, list[tuple[float, float]]] = defaultdict(list)
        """When each answered request was sent (monotonic clock) and how many seconds it took, by route."""
        self.whole: dict[str, list[float]] = defaultdict(list)
        """Seconds from the first try of a request until its answer."""
        self.refused: dict[str, int] = defaultdict(int)
        self.tries = 0

    def acknowledge(self, name: str, kind: str, key: str, event: int, preference: int) -> None:
        os.write(self.file, f"{name} {kind} {key} {event} {preference}\n".encode())
        self.votes += kind == "vote"
        self.stop = self.votes >= self.settings["votes"]


class Connection:
    """One kept-alive connection to the service, opened again when it is lost."""

    def __init__(self, port: int, session: str, csrf: str) -> None:
        self.port, self._streams = port, None
        self._head = (
            f" HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nCookie: penstock_session={session}\r\nX-CSRF-Token: {csrf}\r\n"
            f"Origin: http://127.0.0.1:{port}\r\nContent-Type: application/json\r\nContent-Length: "
        )

    async def call(self, method: str, path: str, body: dict[str, Any] | None) -> tuple[int, Any]:
        """Status and JSON of an answer. Raises one of ``LOST``."""
        data = b"" if body is None else json.dumps(body).encode()
        try:
            async with asyncio.timeout(PATIENCE):
                if self._streams is None or self._streams[0].at_eof():
                    self.close()
                    self._streams = await asyncio.open_connection("127.0.0.1", self.port)
                reader, writer = self._streams
                writer.write(f"{method} {path}{self._head}{len(data)}\r\n\r\n".encode() + data)
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
                answer = json.loads(await reader.readexactly(length))
        except BaseException:
            self.close()
            raise
        if b"connection: close" in head:
            self.close()
        return int(head[9:12]), answer

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
        self._streams = None


class Annotator:
    """One of them."""

    def __init__(self, shared: Shared, who: dict[str, str]) -> None:
        self.shared, self.name = shared, who["name"]
        self.connection = Connection(shared.settings["port"], who["session"], who["csrf"])
        self.draw = random.Random(f"{shared.settings['seed']}/{self.name}")
        self.tasks: dict[str, Any] = {}
        self.made = 0

    async def request(self, route: str, body: dict[str, Any] | None = None) -> tuple[int, Any]:
        """Ask until an answer comes. After a loss ``next`` asks what is held instead: a lease may be there already."""
        began, shared, lost, attempt = time.monotonic(), self.shared, False, 0
        while True:
            sent = time.monotonic()
            held = route == "held" or (route == "next" and lost)
            try:
                status, answer = await self.connection.call(
                    "GET" if held else "POST", f"/api/{'held' if held else route}", body
                )
            except LOST:
                status, answer, lost = 0, None, True
            now = time.monotonic()
            if status not in (0, 429, 503):
                break
            shared.tries += 1
            if now - began > PATIENCE:
                raise RuntimeError(f"{self.name}: no answer to {route} in {PATIENCE:g} seconds")
            await asyncio.sleep(min(LONGEST_WAIT, 2.0**attempt))  # as the page does
            attempt += 1
        shared.up[route].append((sent, now - sent))
        shared.whole[route].append(now - began)
        if status != 200:
            shared.refused[f"{route} {status} {answer['error']['code']}"] += 1
        elif held and route == "next":
            new = [task for task in answer["tasks"] if task["id"] not in self.tasks]
            return (200, {"task": new[0]}) if new else await self.request("next", body)
        return status, answer

    def key(self) -> str:
        self.made += 1
        return f"{self.made:06d}-{self.draw.getrandbits(64):016x}"

    async def fetch(self) -> None:
        """Lease one more task, if there is one."""
        status, answer = await self.request("next", {})
        if status == 200 and answer["task"]:
            self.tasks[answer["task"]["id"]] = answer["task"]

    async def work(self) -> None:
        """Judge until all votes are in."""
        think = self.shared.settings["think"]
        await asyncio.sleep(self.draw.uniform(0, min(think, 10.0)))
        _, answer = await self.request("held")
        self.tasks = {task["id"]: task for task in answer["tasks"]}
        while not self.shared.stop:
            if not self.tasks:
                await self.fetch()
            if not self.tasks:  # others hold what is left
                await asyncio.sleep(0.5)
                continue
            task, shown = next(iter(self.tasks)), time.monotonic()
            if len(self.tasks) < 2:
                await self.fetch()
            await asyncio.sleep(max(0.0, self.draw.expovariate(1 / think) - (time.monotonic() - shown)) if think else 0)
            await self.answer(task)
        self.connection.close()

    async def answer(self, task: str) -> None:
        """Submit a vote, sometimes a skip, sometimes twice; sometimes take it back."""
        kind = "skip" if self.draw.random() < 0.01 else "vote"
        preference = self.draw.randint(-3, 3) if kind == "vote" else 0
        body = {"preference": preference} if kind == "vote" else {"reason": "unclear"}
        act = {"key": self.key(), "task": task, "kind": kind, "body": body, "latency": 1.0}
        status, answer = await self.request("submit", act)
        del self.tasks[task]
        if status != 200:
            return
        self.shared.acknowledge(self.name, kind, act["key"], answer["event"], preference)
        if self.draw.random() < 0.03:
            again = (await self.request("submit", act))[1]
            assert again["event"] == answer["event"], "sent twice, the same event"
        if self.draw.random() < 0.01:
            key = self.key()
            status, answer = await self.request("undo", {"key": key})
            if status == 200 and answer["task"]:
                self.tasks = {answer["task"]["id"]: answer["task"], **self.tasks}


async def everybody(shared: Shared) -> None:
    """All annotators at once; says on standard output how many votes are in."""
    people = [Annotator(shared, who) for who in shared.settings["people"]]

    async def tell() -> None:
        while True:
            print(shared.votes, flush=True)
            await asyncio.sleep(0.1)

    telling = asyncio.create_task(tell())
    async with asyncio.TaskGroup() as group:
        for person in people:
            group.create_task(person.work())
    telling.cancel()


def main() -> None:
    folder = Path(sys.argv[1])
    shared, began = Shared(folder), time.monotonic()
    asyncio.run(everybody(shared))
    found = {
        "seconds": time.monotonic() - began,
        "cpu_seconds": time.process_time(),
        "tries_lost": shared.tries,
        "refused": shared.refused,
        "up": shared.up,
        "whole": shared.whole,
    }
    (folder / "latencies.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
