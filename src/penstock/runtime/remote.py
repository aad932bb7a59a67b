"""The hub from another process: its verbs, a learner's side of its stream, and what a generator waits for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from penstock.core.errors import PenstockError
from penstock.core.types import Group, Metrics, Version
from penstock.data.blobs import BLOBS, Blobs
from penstock.loops.evaluation_queue import EvaluationQueue
from penstock.net.rpc import Client, connect
from penstock.observe.machine import seen
from penstock.runtime.blobs import BlobCaller
from penstock.runtime.bootstrap import Bootstrap
from penstock.runtime.hub import LearnerVerbs, RoleVerbs
from penstock.runtime.local import alongside
from penstock.stream.enrichment import Change
from penstock.stream.leases import Lease
from penstock.stream.rules import Rules
from penstock.stream.stream import LearnerClient, Worker
from penstock.stream.verbs import Caller, remote
from penstock.stream.weight_registry import WeightRegistry
from penstock.weights.follow import VersionBarrier

BEAT = 2.0
"""Seconds between two signs of life."""
KEPT = 64
"""Versions whose checksums the learner remembers."""


class HubClient:
    """The hub as a role sees it. What each verb does is said where it is carried out."""

    def __init__(self, client: Client, with_groups: Caller | None = None) -> None:
        """``with_groups``: what calls go through that groups travel with; the client itself where none refers to blobs."""
        self.client, self.until_lost = client, client.until_lost
        caller = with_groups or client
        self.role = remote(RoleVerbs, client)
        self.worker = remote(Worker, caller)
        self.registry = remote(WeightRegistry, client)
        self.evaluations = remote(EvaluationQueue, caller)
        self.learner = remote(LearnerVerbs, caller)


@contextlib.asynccontextmanager
async def joined(
    bootstrap: Bootstrap, name: str, role: str, counts: Callable[[], Mapping[str, float]], stage: str = ""
) -> AsyncIterator[HubClient]:
    """A connection to the hub, with signs of life as long as the event loop turns; ``counts`` go with them. A role of a
    ``stage`` has joined it."""
    client = await connect(bootstrap.hub, bootstrap.token, name=name, role=role)
    known = HubClient(client, BlobCaller(client, Blobs(bootstrap.folder / BLOBS)))

    async def beat() -> None:
        while True:
            await known.role.alive(dict(counts()), seen(name) if role != "events" else {})
            await asyncio.sleep(BEAT)

    beating = asyncio.create_task(beat())
    try:
        if stage:
            await known.role.join(stage)
        yield known
    except Exception as error:
        if role != "learner":  # which says so itself; others have but a log, and the disk may be full
            with contextlib.suppress(PenstockError, TimeoutError):
                async with asyncio.timeout(BEAT):
                    await known.role.note("role failed", {"reason": f"{type(error).__name__}: {error}"})
        raise
    finally:
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)
        await client.close()


class RemoteLearner(LearnerClient):
    """The learner's side of a hub: batches, weights and notes."""

    def __init__(self, rules: Rules, report: Callable[..., None]) -> None:
        """``report`` hears what other roles have to say, as ``report(what, **fields)``."""
        super().__init__(rules)
        self.report = report
        self.counts: Mapping[str, Mapping[str, float]] = {}
        """The latest counts of the other roles."""
        self.machines: Metrics = {}
        """What was seen of the processes and nodes since the lease before (``observe/machine.py``)."""
        self.stats: Mapping[str, float] = {}
        """The stream's counts."""
        self.held: list[Mapping[str, Any]] = []
        """Checksums of the weights that generators hold, which nobody has compared yet."""
        self.sums: dict[tuple[int, Version], list[str]] = {}
        """Those of the latest versions that went out, by learner_epoch and version."""

    hub: LearnerVerbs
    """The hub's verbs, once :meth:`begin` was called."""

    async def begin(self, hub: HubClient, stage: str) -> int:
        """Begin or go on with a stage from the ledger as it is; gives the number of this start of the learner."""
        self.hub = hub.learner
        return int(await hub.role.begin(stage, self.ledger))

    async def end(self) -> None:
        """The stage is over."""
        self._write_down(await self.hub.end())

    async def announce(self, manifest: Mapping[str, Any]) -> Collection[str]:
        """Announce weights; gives the names of the roles that take weights."""
        order = int(manifest["learner_epoch"]), int(manifest["version"])
        self.sums[order] = [bucket["checksum"] for bucket in manifest["buckets"]]
        for old in list(self.sums)[:-KEPT]:
            del self.sums[old]
        return await self.hub.announce(dict(manifest))

    async def lease(self, version: Version) -> Lease:
        """The next batch; waits for it. What others have counted comes with it."""
        lease, *groups = await self.hub.lease(version)
        fresh = len(lease.ordinals)
        lease = replace(lease, groups=tuple(groups[:fresh]), reused=tuple(groups[fresh:]))
        status = await self.hub.status()
        self.counts, self.stats = status["counts"], status["stats"]
        self.held += status["held"]
        self.machines = status["machines"]
        return lease

    async def release(self, lease: Lease) -> None:
        """The weights trained on the lease are published: its slots open."""
        await self.hub.release(lease.number, self.saved)

    async def listen(self) -> None:
        """Write down what other roles have to say as soon as they say it; until the task is cancelled."""
        while True:
            self._write_down(await self.hub.listen())

    def _write_down(self, notes: Sequence[dict[str, Any]]) -> None:
        for note in notes:
            self.report(note.pop("what"), **note)


def newest_of(registry: WeightRegistry, barrier: VersionBarrier) -> Callable[[int, Version], Awaitable[Mapping[str, Any]]]:
    """What a generator follows: the newest manifest after the one it has, of which its groups hear as well."""

    async def newest(learner_epoch: int, version: Version) -> Mapping[str, Any]:
        while (manifest := await registry.wait_newer(learner_epoch, version)) is None:
            pass
        barrier.announced(manifest)
        return manifest

    return newest


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
