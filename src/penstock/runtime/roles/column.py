"""What every role does that writes a column on the groups of the stream."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from penstock.core.types import Group
from penstock.runtime.bootstrap import Bootstrap
from penstock.runtime.local import alongside
from penstock.runtime.remote import joined
from penstock.stream.enrichment import Change

GROUPS = 16
"""Groups that one process works on at a time."""


async def write_column(
    bootstrap: Bootstrap, column: str, found: Callable[[Group], Awaitable[Sequence[Change]]], groups: int = GROUPS
) -> None:
    """Take groups that lack ``column``, at most ``groups`` at a time, and write what ``found(group)`` gives, for ever.

    Ends with the connection to the hub, which gives what was worked on to another process.
    """
    async with joined(bootstrap, bootstrap.name, bootstrap.role, dict, bootstrap.online.name) as hub:

        async def one_by_one() -> None:
            while True:
                for ticket, group in await hub.worker.take(column):
                    await hub.worker.write(ticket, column, await found(group))

        await hub.role.ready()
        async with alongside(hub.until_lost(), *(one_by_one() for _ in range(1, groups))):
            await one_by_one()
