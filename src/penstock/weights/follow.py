"""The generator's side of every channel: follow the newest manifest, and load what it announces."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import replace
from typing import Any, Protocol

from penstock.core.contracts import Generator
from penstock.core.errors import WeightError
from penstock.core.types import CachePolicy, Version, WeightUpdate
from penstock.weights.snapshot import Superseded

Newest = Callable[[int, Version], Awaitable[Mapping[str, Any]]]
"""``(incarnation, version)`` → the newest manifest, once there is one after these; waits for it."""


class Subscriber(Protocol):
    """Where a channel's weights arrive."""

    def open(self, manifest: Mapping[str, Any]) -> WeightUpdate:
        """The verified update that a manifest announces. Blocks, so it is called in a thread.

        Raises Superseded where newer weights have taken its place, WeightError where it is refused.
        """
        ...


class Border:
    """Keeps groups and weight updates apart (``kv="drain"``): an update waits until no group is in flight, and while it does
    no other group begins."""

    def __init__(self) -> None:
        self._groups = 0
        self._due = False
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def group(self) -> AsyncIterator[None]:
        """Within it a group is in flight. Waits while an update is due; unblocked when it is loaded or refused."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._due)
            self._groups += 1
        try:
            yield
        finally:
            self._groups -= 1
            await self._wake()

    @asynccontextmanager
    async def update(self) -> AsyncIterator[None]:
        """Within it weights may be loaded. Waits for the groups in flight; unblocked by the end of the last."""
        self._due = True
        try:
            async with self._changed:
                await self._changed.wait_for(lambda: not self._groups)
            yield
        finally:
            self._due = False
            await self._wake()

    async def _wake(self) -> None:
        async with self._changed:
            self._changed.notify_all()


async def follow(
    generator: Generator,
    newest: Newest,
    subscriber: Subscriber,
    kv: CachePolicy,
    report: Callable[..., None],
    border: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
) -> None:
    """Load version after version into a generator, for ever; versions that came and went meanwhile are skipped.

    Takes manifests from ``newest`` and waits for it alone; ends when it raises or the task is cancelled. Opening and verifying
    happen in a thread while the generator decodes. A refused update leaves the old weights and is reported.

    Args:
        report: called with ("weights loaded", version, incarnation, bytes, opened_seconds, loaded_seconds) or with
            ("weights refused", version, incarnation, reason), all but the first by name.
        border: what a load happens within; see :class:`Border`.
    """
    order = (-1, -1)
    while True:
        manifest = await newest(*order)
        order = (int(manifest["incarnation"]), int(manifest["version"]))
        told = {"incarnation": order[0], "version": order[1]}
        began = time.perf_counter()
        try:
            update = await asyncio.to_thread(subscriber.open, manifest)
            opened = time.perf_counter()
            async with border():
                loading = time.perf_counter()
                await generator.load(replace(update, kv=kv))
        except Superseded:
            continue  # a newer one is there, or about to be
        except WeightError as error:
            report("weights refused", **told, reason=str(error))
            continue
        report(
            "weights loaded", **told, bytes=int(manifest["bytes"]),
            opened_seconds=opened - began, loaded_seconds=time.perf_counter() - loading,
        )  # fmt: skip
