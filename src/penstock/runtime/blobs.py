"""Blobs between the processes of a run: a process that lacks one is sent it, once.

A role calls the hub through a :class:`BlobCaller`, so blobs go where the groups go that refer to them. The hub keeps them in
the run's folder while a group in the stream or a lease refers to them, and beyond that while there is room. Where a role's
folder is the hub's, nothing has to travel.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from penstock.core.blobs import Blob
from penstock.core.types import Group
from penstock.data.blobs import Blobs
from penstock.net.rpc import Many
from penstock.stream.verbs import Caller, remote, verb

NESTED = 3
"""How deep groups may lie in what is called and answered: in a list of a lease, with a ticket."""


class BlobVerbs:
    """What the hub does with blobs. ``needed`` gives the hashes of those that groups in the stream and leases refer to."""

    def __init__(self, blobs: Blobs, needed: Callable[[], Collection[str]]) -> None:
        self.blobs, self.needed = blobs, needed

    @verb()
    async def lacking_blobs(self, blobs: list[Blob]) -> list[Blob]:
        """Those that the hub lacks."""
        return self.blobs.lacking(blobs)

    @verb(waits=True)
    async def keep_blob(self, blob: Blob, content: Any) -> None:
        """Take a blob. Raises DataError where the bytes are not the ones that it names, or there is no room."""
        await asyncio.to_thread(self.blobs.keep, blob, content.tobytes(), "a role", self.needed())

    @verb(waits=True)
    async def read_blob(self, blob: Blob) -> Any:
        """The bytes of a blob. Raises DataError where it is not here."""
        return np.frombuffer(await asyncio.to_thread(self.blobs.read, blob), np.uint8)


class BlobCaller:
    """Calls the hub, and lets blobs go with the groups that refer to them.

    Before a call the hub gets what it lacks of the groups that are sent, after it this role what it lacks of those that came.

    Each blob crosses at most once, even if many groups that refer to it come and go at the same time.

    Raises:
        DataError: from every call, where a blob is nowhere to be had or its bytes are others than its name says.
    """

    def __init__(self, caller: Caller, blobs: Blobs) -> None:
        self.caller, self.blobs = caller, blobs
        self.hub = remote(BlobVerbs, caller)
        self._there: set[str] = set()
        """Hashes that the hub has, by what it said."""
        self._crossing: dict[str, asyncio.Task[None]] = {}

    async def call(self, verb: str, /, *, deadline: float, **values: Any) -> Any:
        sent = dict.fromkeys(blob for blob in blobs_in(values) if blob.hash not in self._there)
        await self._each(sent, self._send)
        found = await self.caller.call(verb, deadline=deadline, **values)
        await self._each(self.blobs.lacking(blobs_in(found)), self._fetch)
        return found

    async def _each(self, blobs: Iterable[Blob], move: Callable[[Blob], Any]) -> None:
        """Move blobs, several at a time; who wants one that is on its way waits for it."""
        for blob in blobs:
            if blob.hash not in self._crossing:
                self._crossing[blob.hash] = task = asyncio.create_task(move(blob))
                task.add_done_callback(partial(self._crossed, blob.hash))
        for task in [self._crossing[blob.hash] for blob in blobs if blob.hash in self._crossing]:
            await asyncio.shield(task)

    def _crossed(self, name: str, task: asyncio.Task[None]) -> None:
        self._crossing.pop(name, None)

    async def _send(self, blob: Blob) -> None:
        if await self.hub.lacking_blobs([blob]):
            await self.hub.keep_blob(blob, np.frombuffer(await asyncio.to_thread(self.blobs.read, blob), np.uint8))
        self._there.add(blob.hash)

    async def _fetch(self, blob: Blob) -> None:
        content = await self.hub.read_blob(blob)
        await asyncio.to_thread(self.blobs.keep, blob, content.tobytes(), "the hub")
        self._there.add(blob.hash)


def blobs_in(value: Any, depth: int = NESTED) -> Iterator[Blob]:
    """The blobs of the groups in a value that travels."""
    if isinstance(value, Group):
        yield from value.blobs
    elif isinstance(value, Many):
        yield from blobs_in([value.value, *value.items], depth)
    elif depth and isinstance(value, Mapping | list | tuple):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from blobs_in(inner, depth - 1)
