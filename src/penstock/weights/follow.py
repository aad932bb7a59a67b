"""The generator's side of every channel: follow the newest manifest, and load what it announces."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.core.contracts import FollowsWeights
from penstock.core.errors import GenerationError, Superseded, WeightError
from penstock.core.types import CachePolicy, Version

if TYPE_CHECKING:
    from penstock.weights.ends import Subscriber

Newest = Callable[[int, Version], Awaitable[Mapping[str, Any]]]
"""``(learner_epoch, version)`` → the newest manifest, once there is one after these; waits for it."""

QUICKEST_LOAD = 60.0
"""Seconds that a generator waits at least for weights that were announced."""
SLOWEST_LOAD = 20 << 20
"""Bytes a second that the slowest transfer of weights is expected to bring."""
UNANNOUNCED = 3600.0
"""Seconds that a generator waits for weights that the learner has not made yet."""


class VersionBarrier:
    """Lets groups wait until a generator holds the version that their ticket asks for.

    All that wait for the same weights go on in the same turn of the event loop, so that they enter the same decode step.
    """

    def __init__(self, generator: FollowsWeights, deadline: float = UNANNOUNCED) -> None:
        """``deadline`` is how many seconds weights may take that are not announced yet, because the learner makes them."""
        self.generator, self.deadline = generator, deadline
        self._changed = asyncio.Event()
        self._refused = ""
        self._announced: Version = -1
        self._bytes = 0
        self._began, self._longest = 0.0, 0.0

    def announced(self, manifest: Mapping[str, Any]) -> None:
        """Weights are about to be loaded."""
        self._announced, self._bytes = int(manifest["version"]), int(manifest["bytes"])
        self._began = time.monotonic()
        self._wake()

    def loaded(self, refused: str = "") -> None:
        """Say that the generator may hold another version now, or why the last one was ``refused``."""
        self._refused = refused
        self._longest = max(self._longest, time.monotonic() - self._began)
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def patience(self, version: Version) -> float:
        """Seconds that loading may take: by what was announced, by its size, and by ten times the longest load so far."""
        if self._announced < version:
            return self.deadline
        return max(QUICKEST_LOAD, self._bytes / SLOWEST_LOAD, 10 * self._longest)

    async def first(self) -> None:
        """Wait for the weights that a generator begins with. Raises GenerationError where they are refused or do not come."""
        while self.generator.stats().version < 0:
            if self._refused:
                raise GenerationError(f"this generator has no weights to begin with: {self._refused}")
            await self._wait(0)

    async def __call__(self, version: Version) -> None:
        """Wait until the generator holds ``version`` or a younger one. Raises GenerationError after the deadline."""
        while self.generator.stats().version < version:
            await self._wait(version)

    async def _wait(self, version: Version) -> None:
        seconds = self.patience(version)
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            raise GenerationError(
                f"waited {seconds:.0f} s for weights of version {version} from the learner; this generator holds "
                f"{self.generator.stats().version}" + (f"; {self._refused}" if self._refused else "")
            ) from None


class DrainBarrier:
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
    generator: FollowsWeights,
    newest: Newest,
    subscriber: Subscriber,
    kv: CachePolicy,
    report: Callable[..., None],
    border: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
) -> None:
    """Load version after version into a generator, for ever; versions that came and went meanwhile are skipped.

    Takes manifests from ``newest`` and waits for it alone; versions older than the generator holds are left out, because its
    groups were begun with younger ones. It ends when it raises or the task is cancelled. Opening and verifying
    happen in a thread while the generator decodes. A refused update leaves the old weights and is reported.

    Args:
        report: called with ("weights loaded", version, learner_epoch, bytes, opened_seconds, loaded_seconds) or with
            ("weights refused", version, learner_epoch, reason), all but the first by name.
        border: what a load happens within; see :class:`DrainBarrier`.
    """
    order = (-1, -1)
    while True:
        manifest = await newest(*order)
        order = (int(manifest["learner_epoch"]), int(manifest["version"]))
        if order[1] < generator.stats().version:
            continue  # a learner that was started again has not caught up yet
        which = {"learner_epoch": order[0], "version": order[1]}
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
            report("weights refused", **which, reason=str(error))
            continue
        report(
            "weights loaded", **which, bytes=int(manifest["bytes"]),
            opened_seconds=opened - began, loaded_seconds=time.perf_counter() - loading,
        )  # fmt: skip
