"""Work alongside other work in one event loop: the first error of any ends all, and none outlives the others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any


@asynccontextmanager
async def alongside(*others: Coroutine[Any, Any, Any]) -> AsyncIterator[None]:
    """Run coroutines while the block runs; they are cancelled when it ends. The first error of any of them ends the block and
    is raised as it is."""
    here = asyncio.current_task()
    failed: list[BaseException] = []
    assert here is not None

    def ended(task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            if not failed:
                here.cancel()
            failed.append(error)

    tasks = [asyncio.create_task(other) for other in others]
    for task in tasks:
        task.add_done_callback(ended)
    try:
        try:
            yield
        finally:
            for task in tasks:
                task.remove_done_callback(ended)
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    except asyncio.CancelledError:
        if not failed:
            raise
        here.uncancel()
        raise failed[0] from None
