"""The sandbox: a bounded number of untrusted programs at once, on one backend that was tried before it was trusted."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol

from penstock.core.errors import SpecError
from penstock.sandbox.program import Limits, Outcome, Program, SandboxError


class Backend(Protocol):
    """Where programs run. ``start`` and ``run`` raise SandboxError for what is not the program's doing."""

    async def start(self, limits: Limits, size: int) -> None:
        """Make ready for ``size`` programs at once, and try whether the backend holds what it promises.

        Called before each program; does nothing where all is ready, and starts again what has died.
        """

    async def run(self, program: Program, limits: Limits, place: int) -> Outcome:
        """Run one program in a place (0 … size - 1) that nobody else uses meanwhile. Cancelling ends the program."""

    def close(self) -> None:
        """End everything that runs there."""


class Sandbox:
    """Runs untrusted programs, ``size`` at once; used from one event loop at a time.

    ``await sandbox.run(program)`` waits for a place, runs the program and gives its :class:`Outcome`. Up to ``waiting`` calls
    may wait, each for ``patience`` seconds at most. The backend is started, and attacked as a test, by the first call.
    """

    def __init__(
        self, backend: Backend, *, size: int | None = None, waiting: int = 4096, patience: float = 600.0,
        limits: Limits | None = None,
    ) -> None:  # fmt: skip
        self.size = size or os.cpu_count() or 1
        self.limits = limits or Limits()
        self.ran = 0
        """Programs that ran to an outcome."""
        self._backend = backend
        self._most_waiting, self._patience = waiting, patience
        self._inside = 0
        self._free = list(range(self.size))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._places, self._starting = asyncio.Semaphore(self.size), asyncio.Lock()

    async def run(self, program: Program) -> Outcome:
        """Run one program to its end.

        Raises:
            SandboxError: no safe way to run it, too many calls wait, no place came free, limits above the sandbox's, or the
                program was lost. Nothing is known of the program then; that it failed would be an outcome.
        """
        limits = (program.limits or self.limits).within(self.limits)
        async with self._place() as place:
            async with self._starting:
                await self._backend.start(self.limits, self.size)
            outcome = await self._backend.run(program, limits, place)
        self.ran += 1
        return outcome

    @contextlib.asynccontextmanager
    async def _place(self) -> AsyncIterator[int]:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._places, self._starting = loop, asyncio.Semaphore(self.size), asyncio.Lock()
            self._free, self._inside = list(range(self.size)), 0
        waiting = self._inside - self.size
        if waiting >= self._most_waiting:
            raise SandboxError(f"{waiting} programs wait for the sandbox already; ask for fewer at once, or raise waiting")
        self._inside += 1
        try:
            try:
                async with asyncio.timeout(self._patience):
                    await self._places.acquire()
            except TimeoutError:
                raise SandboxError(f"no place came free in {self._patience:g} s, {self.size} programs run at once") from None
            place = self._free.pop()
            try:
                yield place
            finally:
                self._free.append(place)
                self._places.release()
        finally:
            self._inside -= 1

    def close(self) -> None:
        """End what runs, and the backend's processes; the next call starts it again."""
        self._backend.close()


def open_sandbox(
    where: str = "jail", *, size: int | None = None, limits: Limits | None = None, packages: tuple[str, ...] = ()
) -> Sandbox:
    """A sandbox by name; nothing is started before its first program.

    ``jail``: processes of this machine, confined by the kernel; refused where the kernel gives too little. ``docker:IMAGE``
    and ``docker+RUNTIME:IMAGE`` (gVisor is ``docker+runsc:…``): containers. ``http://…`` and ``https://…``: a remote executor
    that answers ``POST /run_code`` as SandboxFusion does. ``trusted``: a plain process of yours with limits, without any
    protection: it reads and writes what you can. ``packages`` are folders that programs in the jail may read and import from.
    """
    from penstock.sandbox.jail import Jail

    if where in ("jail", "trusted"):
        return Sandbox(Jail(trusted=where == "trusted", packages=packages), size=size, limits=limits)
    if where.startswith(("http://", "https://")):
        if importlib.util.find_spec("httpx") is None:
            raise SpecError("a remote sandbox needs the httpx package; run: pip install penstock[serve]")
        from penstock.sandbox.remote import Remote

        return Sandbox(Remote(where), size=size, limits=limits)
    engine, _, image = where.partition(":")
    if image and engine.partition("+")[0] == "docker":
        from penstock.sandbox.docker import Docker

        return Sandbox(Docker(image, engine.partition("+")[2]), size=size, limits=limits)
    raise SpecError(f'sandbox "{where}" is unknown; use jail, docker:IMAGE, http://HOST:PORT or trusted')


def python_tool(sandbox: Sandbox) -> Callable[[str], Awaitable[str]]:
    """The tool ``python(code)`` of a sandbox: what the code prints, and how it failed, as text for a model to read."""

    async def python(code: str) -> str:
        """Run Python code in an empty folder without network, and give what it prints.

        Args:
            code: a complete program; print what you want to see.
        """
        if not code.strip():
            return "error: no code was given"
        outcome = await sandbox.run(Program(code=code))
        ending = f"stopped: more {outcome.stopped} than allowed" if outcome.stopped else f"exit code {outcome.exit}"
        return outcome.stdout + outcome.stderr + ("" if outcome.ok else f"[{ending}]")

    return python
