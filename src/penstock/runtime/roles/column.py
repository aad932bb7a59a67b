"""What every role does that writes a column on the groups of the stream."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from penstock.core.types import Group
from penstock.runtime.bootstrap import Bootstrap
from penstock.runtime.local import alongside
from penstock.runtime.remote import joined
from penstock.stream.enrichment import Change
from penstock.stream.entry import Ticket
from penstock.stream.stream import Worker

GROUPS = 16
"""Groups that one process works on at a time."""


async def write_column(
    bootstrap: Bootstrap, column: str, found: Callable[[Group], Awaitable[Sequence[Change]]], groups: int = GROUPS
) -> None:
    """Take groups that lack ``column``, at most ``groups`` at a time, and write what ``found(group)`` gives, for ever.

    Ends with the connection to the hub, which gives what was worked on to another process.
    """
    async with joined(bootstrap, bootstrap.name, bootstrap.role, dict, bootstrap.online.name) as hub:
        await hub.role.ready()

        async def one(ticket: Ticket, group: Group) -> None:
            await hub.worker.write(ticket, column, await found(group))

        async with alongside(hub.until_lost()):
            await _each(hub.worker, column, one, groups)


async def _each(worker: Worker, column: str, work: Callable[[Ticket, Group], Any], groups: int) -> None:
    """Take and work side by side; the first error ends it."""
    running: set[asyncio.Task[None]] = set()
    taking: asyncio.Task[Any] | None = None
    try:
        while True:
            if taking is None and len(running) < groups:
                taking = asyncio.create_task(worker.take(column, groups - len(running)))
            await asyncio.wait({*running, *([taking] if taking else [])}, return_when=asyncio.FIRST_COMPLETED)
            for task in [task for task in running if task.done()]:
                task.result()
                running.discard(task)
            if taking is not None and taking.done():
                running |= {asyncio.create_task(work(ticket, group)) for ticket, group in taking.result()}
                taking = None
    finally:
        for task in (*running, *([taking] if taking else [])):
            task.cancel()
