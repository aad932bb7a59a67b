"""Time as an argument, so that the same flow runs under the wall clock and under a simulator's virtual clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import Protocol, TypeVar

Result = TypeVar("Result")


class Clock(Protocol):
    """Seconds since an arbitrary start, and waiting with a deadline."""

    def now(self) -> float: ...

    async def wait(self, what: Awaitable[Result], seconds: float) -> Result:
        """Wait for ``what`` for at most ``seconds``; raises TimeoutError."""
        ...


class WallClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        return time.monotonic()

    async def wait(self, what: Awaitable[Result], seconds: float) -> Result:
        async with asyncio.timeout(seconds):  # asyncio.wait_for of Python 3.11 swallows a cancel that comes with the result
            return await what
