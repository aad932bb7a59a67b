"""What starts a role on a node of a cluster and passes on how it ended; an actor of :mod:`penstock.runtime.ray`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from penstock.core.errors import RoleError

KEPT = 16
"""Calls whose answers are kept, in case they come again."""
CHUNKS = 256
"""Pieces of a process's output that wait for the driver."""


class NodeAgent:
    """Made on a node, starts one role there."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._answers: dict[int, asyncio.Future[str]] = {}
        self._said: asyncio.Queue[list[str]] = asyncio.Queue(CHUNKS)
        self._readers: list[asyncio.Task[None]] = []

    def address(self) -> str:
        """Of the node."""
        return "127.0.0.1"

    async def call(self, number: int, verb: str, text: str) -> str:
        """Carry a call out, or give the answer again if its number has come before. ``text`` and the answer are JSON."""
        if number not in self._answers:
            handler: Callable[..., Coroutine[Any, Any, Any]] = getattr(self, f"_{verb}")
            self._answers[number] = asyncio.ensure_future(self._carry_out(handler, text))
            for old in [old for old, answer in self._answers.items() if old < number - KEPT and answer.done()]:
                del self._answers[old]
        return await asyncio.shield(self._answers[number])

    async def _carry_out(self, handler: Callable[..., Coroutine[Any, Any, Any]], text: str) -> str:
        try:
            return json.dumps({"value": await handler(**json.loads(text))})
        except (OSError, RoleError) as error:
            return json.dumps({"error": str(error)})

    async def _start(
        self, name: str, command: list[str], bootstrap: dict[str, Any], log: str, environment: dict[str, str], driver: str
    ) -> str:
        """Start the role; gives the node's address. ``driver`` is the driver's Python; a node has one of its own."""
        address = self.address()
        folder, base = Path(bootstrap["folder"]), Path(bootstrap["base"])
        if not base.is_dir() or (bootstrap["stage"] and not (folder / "run.json").exists()):
            raise RoleError(
                f"{name}: node {address} does not see {folder if base.is_dir() else base}; start in a folder that all "
                "nodes share, and put the run there with --runs"
            )
        output = open(log, "ab") if log else None  # noqa: SIM115 - closed below, once the process has it
        try:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable if word == driver else word for word in command),
                name,
                cwd=base,
                stdin=asyncio.subprocess.PIPE,
                stdout=output or asyncio.subprocess.PIPE,
                stderr=output or asyncio.subprocess.PIPE,
                start_new_session=True,
                env={**os.environ, **environment, "PENSTOCK_HOST": address},
            )
        finally:
            if output is not None:
                output.close()
        pipes = {"out": self._process.stdout, "err": self._process.stderr}
        self._readers = [asyncio.ensure_future(self._read(kind, pipe)) for kind, pipe in pipes.items() if pipe is not None]
        assert self._process.stdin is not None
        with contextlib.suppress(ConnectionError):  # it died at once: a caller that waits for it finds out
            self._process.stdin.write(json.dumps({**bootstrap, "die_with_parent": True}).encode() + b"\n")
            await self._process.stdin.drain()
        return address

    async def _read(self, kind: str, pipe: asyncio.StreamReader) -> None:
        while chunk := await pipe.read(1 << 16):
            await self._said.put([kind, chunk.decode(errors="replace")])

    async def _listen(self) -> list[list[str]]:
        """What the process printed, as (pipe, text); waits for some. Empty: it prints no more."""
        reading: asyncio.Future[Any] = asyncio.gather(*self._readers)
        saying = asyncio.ensure_future(self._said.get())
        ends: set[asyncio.Future[Any]] = {reading, saying}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        found = [saying.result()] if saying.done() else []
        saying.cancel()
        while not self._said.empty():
            found.append(self._said.get_nowait())
        return found

    async def _wait(self) -> int:
        """The exit code, once the process has ended; what it had started ends then."""
        assert self._process is not None
        code = await self._process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        return code

    async def _signal(self, signal_number: int, alone: bool) -> None:
        if self._process is None or self._process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            if alone:
                self._process.send_signal(signal_number)
            else:
                os.killpg(self._process.pid, signal_number)
