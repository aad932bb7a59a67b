"""The local runtime: every role is a task of one event loop in one process."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


async def run_roles(main: Coroutine[Any, Any, Result], *others: Coroutine[Any, Any, Any]) -> Result:
    """Run a main role beside others until it ends; the others are then cancelled.

    The first error of any role ends them all and is raised as it is.
    """
    tasks = [asyncio.create_task(main), *(asyncio.create_task(other) for other in others)]
    try:
        pending = set(tasks)
        while tasks[0] in pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        return tasks[0].result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
