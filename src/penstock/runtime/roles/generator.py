"""A generator: generates groups with an engine of its own, whose weights follow the learner's."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from penstock.config.engine_choice import sends_adapters
from penstock.core.algorithm import FromSamples
from penstock.core.spans import Spans
from penstock.core.tape import Tape
from penstock.data.blobs import BLOBS
from penstock.data.units import prompts_of
from penstock.envs.making import environments
from penstock.loops.rollout import Rollout, rollout
from penstock.runtime.bootstrap import Bootstrap
from penstock.runtime.build import Unscored, seed_of
from penstock.runtime.engines import EngineStart, Opened, opened
from penstock.runtime.local import alongside
from penstock.runtime.remote import HubClient, joined, newest_of
from penstock.train.device import set_up
from penstock.weights.channels import channel
from penstock.weights.follow import DrainBarrier, VersionBarrier, follow

CHECKED = 8
"""Every so many versions the weights in use are compared with the learner's."""


async def run(bootstrap: Bootstrap) -> None:
    """Generate groups with an engine of its own, whose weights follow the learner's."""

    run, stage, weights = bootstrap.run, bootstrap.online, bootstrap.weights
    start = EngineStart(
        bootstrap.stage_start(stage.name),
        set_up(run.device, bootstrap.threads),
        stage.max_running,
        weights.with_name(f"{weights.name}-{bootstrap.name}"),
        sends_adapters(run, stage),
        stage.learner.dtype,
        stage.replays_routes,
        stage.model.media,
        bootstrap.folder / BLOBS,
    )
    async with opened(run.roles.engine, start) as found:
        await generate(bootstrap, found)


async def generate(bootstrap: Bootstrap, found: Opened) -> None:
    """Generate groups for ever, with an engine that is open."""

    run, stage = bootstrap.run, bootstrap.online
    folder, name = bootstrap.folder, bootstrap.name
    engine = found.engine
    engine.spans = Spans(folder / "spans" / f"{name}.jsonl", name)
    engine.tape = Tape.next_take(folder / "schedule" / stage.name, name)
    algorithm: FromSamples = stage.algorithm
    seed = seed_of(run.seed, stage.name)
    roll = Rollout(
        engine,
        environments(found.text, stage.environment, bootstrap.base),
        Unscored(),
        replace(stage.sampling, seed=seed),
        stage.samples,
        algorithm.greedy,
        engine.tape,
    )
    source = prompts_of(stage.data, bootstrap.base, seed, found.text)
    subscriber = channel(run.roles.channel).subscriber(bootstrap.weights, name)
    loaded, drained = VersionBarrier(engine), DrainBarrier()

    def counts() -> dict[str, float]:
        stats = engine.stats()
        names = ("generated_tokens", "busy_seconds", "prefilled_tokens", "reused_tokens")
        return {name: getattr(stats, name) for name in names}

    async with joined(bootstrap, name, "generator", counts, stage.name) as hub:
        notes = UpdateNotes(hub, loaded, engine, found.sums)
        groups = -(-(stage.max_lag + 1) * stage.batch // run.roles.generators) + stage.oversample
        apart = drained.update if stage.kv == "drain" else contextlib.nullcontext
        following = follow(engine, newest_of(hub.registry, loaded), subscriber, stage.kv, notes, apart)
        async with alongside(following, notes.send(), hub.until_lost()):
            await loaded.first()  # a generator that is refused its first weights is not ready
            await hub.role.ready()
            await rollout(hub.worker, source, roll, loaded, groups, drained.group)


class UpdateNotes:
    """What becomes of weight updates: wakes those who wait for a version, and tells the hub of refusals and of checksums."""

    def __init__(self, hub: HubClient, barrier: VersionBarrier, engine: Any, sums: Callable[[], Awaitable[list[str]]]) -> None:
        """``engine`` has ``version`` and ``learner_epoch``; ``sums`` gives the checksums of its weights."""
        self.hub, self.barrier, self.engine, self.sums = hub, barrier, engine, sums
        self._waiting: asyncio.Queue[tuple[str, dict[str, Any]]] = asyncio.Queue(maxsize=1000)
        self._due: asyncio.Queue[tuple[int, int]] = asyncio.Queue(maxsize=1)

    def __call__(self, what: str, **fields: Any) -> None:
        with contextlib.suppress(asyncio.QueueFull):  # the newest note is about the newest version; nobody waits for an old one
            self._waiting.put_nowait((what, fields))

    async def send(self) -> None:
        """For ever. Checksums are computed alongside: those who wait for a version must not wait for them."""
        async with alongside(self._send_sums()):
            while True:
                what, fields = await self._waiting.get()
                self.barrier.loaded(fields.get("reason", ""))
                if what != "weights loaded":
                    await self.hub.role.note(what, fields)
                elif fields["version"] % CHECKED == 0:
                    with contextlib.suppress(asyncio.QueueFull):
                        self._due.put_nowait((fields["learner_epoch"], fields["version"]))

    async def _send_sums(self) -> None:
        """Checksums of the weights that are in use, for the learner to compare: of what was loaded, not of what came."""
        while True:
            order = learner_epoch, version = await self._due.get()
            if order == (self.engine.learner_epoch, self.engine.version):
                sums = await self.sums()
                if sums and order == (self.engine.learner_epoch, self.engine.version):  # or the next came into them meanwhile
                    await self.hub.role.holds(version, learner_epoch, sums)
