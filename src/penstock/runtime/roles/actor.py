"""An actor: steps environments of its own with a policy whose weights follow the learner's."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from penstock.control.actor import Actor
from penstock.control.environments import Environments
from penstock.control.stage import Control
from penstock.control.worker import ActingWorker
from penstock.core.spans import Spans
from penstock.models.control import load_policy
from penstock.runtime.bootstrap import Bootstrap
from penstock.runtime.build import seed_of
from penstock.runtime.local import alongside
from penstock.runtime.remote import joined, newest_of
from penstock.runtime.roles.generator import UpdateNotes
from penstock.train.device import set_up
from penstock.weights.channels import channel
from penstock.weights.follow import DrainBarrier, VersionBarrier, follow
from penstock.weights.snapshot import sums_of


async def run(bootstrap: Bootstrap) -> None:
    """Act for ever: fragment after fragment, each by weights of one version, which change between two of them."""
    made, name = bootstrap.run, bootstrap.name
    stage: Control = cast(Any, bootstrap.online)
    seed = seed_of(made.seed, stage.name)
    policy = load_policy(bootstrap.stage_start(stage.name), set_up(made.device, bootstrap.threads))
    given = stage.environments, seed_of(seed, "environments"), bootstrap.base
    environments = Environments(*given, interface=stage.interface, acting=True)
    worker = ActingWorker(Actor(environments, policy, stage.fragment, seed, stage.explored), seed, name)
    worker.spans = Spans(bootstrap.folder / "spans" / f"{name}.jsonl", name)
    subscriber = channel(made.roles.channel).subscriber(bootstrap.weights, name)
    loaded, drained = VersionBarrier(worker), DrainBarrier()

    async def sums() -> list[str]:
        weights = [(key, tensor.clone()) for key, tensor in policy.weights()]
        return await asyncio.to_thread(sums_of, lambda: iter(weights))

    def counts() -> dict[str, float]:
        stats = worker.stats()
        return {"generated_tokens": stats.generated_tokens, "busy_seconds": stats.busy_seconds}

    try:
        async with joined(bootstrap, name, "actor", counts, stage.name) as hub:
            notes = UpdateNotes(hub, loaded, worker, sums)
            following = follow(worker, newest_of(hub.registry, loaded), subscriber, "keep", notes, drained.update)
            async with alongside(following, notes.send(), hub.until_lost()):
                await loaded.first()
                await hub.role.ready()
                while True:
                    for ticket in await hub.worker.admit(most=1, max_in_flight=1):
                        await loaded(ticket.min_version)
                        async with drained.group():
                            group = await worker.group(ticket.ordinal)
                        await hub.worker.put(ticket, group)
    finally:
        worker.close()
