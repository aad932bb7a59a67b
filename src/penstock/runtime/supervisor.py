"""Starts, watches, restarts and stops the processes of a run.

Every child is the leader of a process group of its own, so that a Ctrl-C reaches the supervisor alone and nothing a child has
started outlives it. A child learns who it is from one line of JSON on its standard input, which stays open: when it ends, the
supervisor is gone and the child ends as well. Who starts a child, and where, is a :class:`Place`: this machine, or a cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from penstock.core.errors import RoleError
from penstock.core.files import last_words
from penstock.net.link import SILENCE
from penstock.runtime.bootstrap import REFUSED

FAILED_STARTS = 3
"""Starts in a row that may end before the role was ready; then the run fails."""
RESTARTS = 12
"""Deaths of a role in a row without a step of the run in between; then the run fails."""
GAPS = 10
"""A role is silent once nothing was heard for so many times the longest gap between its signs of life so far."""
BACK_OFF, LONGEST_BACK_OFF = 0.1, 5.0
"""Seconds before the second restart in a row without a step in between, doubled for each further one, and at most."""
STARTING = 900.0
"""Seconds in which a role must become ready: it may have a large model to load."""
SHUTDOWN_GRACE = 10.0
"""Seconds in which a role that is to stop may end by itself."""


COMMAND = (sys.executable, "-m", "penstock.runtime.role")
"""What starts a process of a run."""


@dataclass
class Presence:
    """What is known of the processes of a role, in seconds of the event loop's clock; 0 is never."""

    ready: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while the latest one is ready for work."""
    peer: int = 0
    """The connection that the latest sign of life came by."""
    seen: float = 0.0
    """When the latest sign of life came."""
    gap: float = 0.0
    """The longest time between two signs of life."""
    connected: float = 0.0
    left: float = 0.0
    """When the latest connection began, and when one last ended."""


@dataclass(frozen=True)
class Role:
    """A process of the run: ``bootstrap`` tells it who it is, ``log`` takes what it prints (None: the terminal)."""

    name: str
    bootstrap: Mapping[str, Any]
    command: tuple[str, ...] = COMMAND
    log: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


class Child(Protocol):
    """One living process of a role, wherever it is."""

    role: Role
    address: str
    """Of the machine that it is on."""

    def signal(self, number: int, alone: bool = False) -> None:
        """Send a signal to the child and all it has started, or to the child ``alone``; nothing happens where it is gone."""

    async def wait(self) -> int:
        """Its exit code, once it has ended."""
        ...

    async def stop(self) -> int:
        """Ask it to end, insist after :data:`SHUTDOWN_GRACE` seconds; gives its exit code."""
        ...


class ProcessChild:
    """A process of this machine."""

    address = "127.0.0.1"

    def __init__(self, role: Role, process: asyncio.subprocess.Process) -> None:
        self.role, self.process = role, process

    def signal(self, number: int, alone: bool = False) -> None:
        with contextlib.suppress(ProcessLookupError):
            if not alone:
                os.killpg(self.process.pid, number)
            elif self.process.returncode is None:
                self.process.send_signal(number)

    async def wait(self) -> int:
        return await self.process.wait()

    async def stop(self) -> int:
        """Ask it to end by closing its input, insist after :data:`SHUTDOWN_GRACE` seconds; gives its exit code."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        for insist in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(TimeoutError):
                return await asyncio.wait_for(asyncio.shield(self.process.wait()), SHUTDOWN_GRACE)
            self.signal(insist)
        return await self.process.wait()


class Place:
    """Where the processes of a run are started: this machine, where no subclass says another."""

    host = "127.0.0.1"
    """The address of this process there, on which the hub listens."""

    async def open(self, note: Callable[..., None]) -> None:
        """Make room for the run; ``note(what, **fields)`` hears what happens there."""

    async def spawn(self, role: Role) -> Child:
        """Start the process of a role and tell it who it is."""
        return await spawn(role)

    async def close(self) -> None:
        """Give the room back. All children have ended."""


async def spawn(role: Role, terminal: int | None = None, folder: Path | None = None) -> ProcessChild:
    """Start the process of a role on this machine, in ``folder``, and tell it who it is. ``terminal`` takes what a role without
    a log prints."""
    with contextlib.ExitStack() as held:
        output: Any = terminal
        if role.log is not None:
            role.log.parent.mkdir(parents=True, exist_ok=True)
            output = held.enter_context(open(role.log, "ab"))
        process = await asyncio.create_subprocess_exec(
            *role.command,
            role.name,  # so that ps tells who is who
            cwd=folder,
            stdin=asyncio.subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env={**os.environ, **role.environment},
        )
    assert process.stdin is not None
    child = ProcessChild(role, process)
    try:
        process.stdin.write(json.dumps(dict(role.bootstrap)).encode() + b"\n")
        await process.stdin.drain()
    except ConnectionError:  # it died at once: a caller that waits for it finds out
        pass
    except BaseException:
        child.signal(signal.SIGKILL)
        raise
    return child


class Supervisor:
    """Keeps roles alive. ``note(what, **fields)`` hears of deaths; ``failed`` fails with the error that ends the run.

    A role that dies is started again, after longer and longer times while the run takes no step in between (``reached()`` says
    how far it is). What ends the run: :data:`FAILED_STARTS` deaths in a row before it was ready, :data:`RESTARTS` without a
    step, or an error that would come again. A role from which nothing was heard for ``silence`` seconds, or
    :data:`GAPS` times its longest gap, is ended and started again.
    """

    def __init__(
        self,
        note: Callable[..., None],
        presence: Mapping[str, Presence],
        spawn: Callable[[Role], Awaitable[Child]],
        reached: Callable[[], object],
        silence: float = SILENCE,
    ) -> None:
        """``presence`` has an entry for every role that is asked for."""
        self.note, self.presence, self.silence = note, presence, silence
        self.spawn, self.reached = spawn, reached
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._keeping: dict[str, asyncio.Task[None]] = {}
        self._ending: list[asyncio.Task[None]] = []

    def start(self, role: Role) -> None:
        """Begin to keep a role; one that is kept already stays as it is."""
        if role.name not in self._keeping:
            self._keeping[role.name] = asyncio.create_task(self._keep(role), name=f"keep {role.name}")

    def release(self, names: Iterable[str]) -> None:
        """Let roles go. They end side by side with what goes on; :meth:`stop` waits for that."""
        for task in [self._keeping.pop(name) for name in list(names) if name in self._keeping]:
            task.cancel()
            self._ending.append(task)

    async def stop(self) -> None:
        """Let all roles go and wait until they are gone."""
        self.release(self._keeping)
        # Shielded: the caller may be gone before they are, and a second cancel would leave them behind.
        await asyncio.shield(asyncio.gather(*self._ending, return_exceptions=True))

    async def _keep(self, role: Role) -> None:
        failed_starts = deaths = 0
        child: Child | None = None
        loop, ready = asyncio.get_running_loop(), self.presence[role.name].ready
        died, reached, back = 0.0, self.reached(), asyncio.ensure_future(asyncio.sleep(0))
        try:
            while True:
                ready.clear()
                child = await self.spawn(role)
                if died:
                    back = asyncio.ensure_future(self._tell_back(role.name, died, loop.time()))
                code = await self._attend(child)
                back.cancel()
                died = loop.time()
                failed_starts = 0 if ready.is_set() else failed_starts + 1
                deaths, reached = deaths + 1 if self.reached() == reached else 1, self.reached()
                child.signal(signal.SIGKILL)  # what it had started
                self.note("role restarted", role=role.name, code=code, words=last_words(role.log))
                refuse_restart(role, code, failed_starts, deaths)
                await asyncio.sleep(min(LONGEST_BACK_OFF, BACK_OFF * 2 ** (deaths - 2)) if deaths > 1 else 0.0)
        except asyncio.CancelledError:
            if child is not None:
                await child.stop()
                child.signal(signal.SIGKILL)
            raise
        except Exception as error:
            if not self.failed.done():
                self.failed.set_exception(error)
        finally:
            back.cancel()

    async def _tell_back(self, name: str, died: float, began: float) -> None:
        """Note how long a role was away, once its successor is ready, and what the time went into: its death was not noticed, a
        place and a process were sought, imports and the model, weights."""
        known = self.presence[name]
        left = min(known.left or died, died)
        await known.ready.wait()
        now = asyncio.get_running_loop().time()
        connected = min(max(known.connected or now, began), now)
        spent = {"noticing": died - left, "placing": began - died, "starting": connected - began, "loading": now - connected}
        parts = {what: round(seconds, 1) for what, seconds in spent.items()}
        self.note("role back", role=name, seconds=round(now - left, 1), **parts)

    async def _attend(self, child: Child) -> int:
        """Wait for the end of a child; one that falls silent is ended."""
        loop, name = asyncio.get_running_loop(), child.role.name
        since, known = loop.time(), self.presence[name]
        ended = asyncio.ensure_future(child.wait())
        try:
            while True:
                ready = known.ready.is_set()
                patience = max(self.silence, GAPS * known.gap if ready else STARTING)  # a large model keeps it busy for long
                heard = max(since, known.seen) if ready else since
                left = heard + patience - loop.time()
                if left <= 0:
                    self.note("role silent", role=name, seconds=patience)
                    child.signal(signal.SIGKILL)
                    return await ended
                done, _ = await asyncio.wait({ended}, timeout=max(min(left, self.silence), 1.0))
                if done:
                    return ended.result()
        finally:
            ended.cancel()


def refuse_restart(role: Role, code: int, failed_starts: int, deaths: int) -> None:
    """Raises RoleError where starting a role again would lead nowhere, with what it last said."""
    said = f"({ending(code)}); it last said: {last_words(role.log) or 'nothing'}. Its log is {role.log}"
    reasons = {
        "cannot do its work": code == REFUSED,
        f"ended {FAILED_STARTS} times before it was ready": failed_starts >= FAILED_STARTS,
        f"ended {RESTARTS} times and the run took no step in between": deaths >= RESTARTS,
    }
    for reason in (reason for reason, holds in reasons.items() if holds):
        raise RoleError(f"{role.name} {reason} {said}")


def ending(code: int) -> str:
    """An exit code in words."""
    names = {-number: number.name for number in signal.Signals}
    return f"exit code {code}" if code >= 0 else f"killed by {names.get(code, f'signal {-code}')}"
