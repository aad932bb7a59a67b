"""A process of a run. It reads who it is from its standard input, one line of JSON, and ends when that input ends."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import signal
import sys
import threading
from collections.abc import Coroutine
from typing import Any

from penstock.core.errors import (
    ConnectionLost,
    DataError,
    DeviceError,
    ModelError,
    PenstockError,
    RoleError,
    SpecError,
    WireError,
)
from penstock.runtime.bootstrap import REFUSED, Bootstrap
from penstock.runtime.launching import IN_A_ROLE
from penstock.runtime.roles import program_of

SHUTDOWN_GRACE = 30.0
"""Seconds in which a process may end in order once its supervisor is gone."""
STANDARD_INPUT = 0
LASTING = (SpecError, DataError, ModelError, DeviceError, WireError)
"""Errors that come again however often a process is started."""


def main() -> int:
    """Take up the role; gives the exit code."""
    os.environ[IN_A_ROLE] = "1"
    bootstrap = Bootstrap.read(_first_line())
    threading.Thread(target=_end_with_parent, args=[bootstrap.die_with_parent], name="parent", daemon=True).start()
    if bootstrap.role == "learner":
        from penstock.runtime.roles.learner import train

        try:
            return train(bootstrap)
        except KeyboardInterrupt:  # a second signal while no session could say so: end by it, as the supervisor expects
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.raise_signal(signal.SIGTERM)
    try:
        asyncio.run(_until_stopped(program_of(bootstrap)(bootstrap)))
    except PenstockError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return exit_code(error)
    return 0


def exit_code(error: PenstockError) -> int:
    """0: the run is over, or the hub has let go of us; REFUSED: it would come again."""
    if isinstance(error, LASTING):
        return REFUSED
    return 0 if isinstance(error, ConnectionLost) else 1


def _first_line() -> bytes:
    """What the supervisor says first. Read without Python's buffers, whose lock a thread must not hold at the exit."""
    line = io.FileIO(STANDARD_INPUT, closefd=False).readline()
    if not line.endswith(b"\n"):
        raise RoleError("the standard input ended before it said what to do; roles are started by their run")
    return line


def _end_with_parent(at_once: bool) -> None:
    """The supervisor holds the other end of our input: when it ends, it is gone or wants us to go.

    ``at_once``: it is gone, and a successor may have started.
    """
    while os.read(STANDARD_INPUT, 4096):
        pass
    if at_once:
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(SHUTDOWN_GRACE)
    os.killpg(0, signal.SIGKILL) if os.getpgrp() == os.getpid() else os._exit(1)


async def _until_stopped(work: Coroutine[Any, Any, None]) -> None:
    """Work until SIGTERM, then close everything in order."""
    task = asyncio.ensure_future(work)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task


if __name__ == "__main__":
    sys.exit(main())
