"""An online stage whose other roles are processes: the learner's side."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from penstock.cli.around import Around, Processes
from penstock.cli.online import OnlineParts
from penstock.cli.supervise import rules_of
from penstock.core.run import Run
from penstock.core.tape import LeaseLog
from penstock.core.types import Metrics
from penstock.flow.remote import RemoteLeasing, joined
from penstock.loops.learn import Step, learn
from penstock.models.files import save_model
from penstock.train.device import threads
from penstock.weights.channels import open_publisher


class ProcsFlow:
    """The learner's flow: batches come from the hub, weights go out through a channel."""

    def __init__(self, parts: OnlineParts, run: Run, processes: Processes, around: Around) -> None:
        self.parts, self.run, self.processes, self.around = parts, run, processes, around
        rules = rules_of(parts.stage, processes=True, references=run.roles.references)
        self.stream = RemoteLeasing(rules, around.report)

    def background(self) -> list[Any]:
        return []

    async def steps(self, start: int) -> AsyncIterator[Step]:
        """Hand the model over, begin the stage at the hub, train, end it."""
        parts, name, stream = self.parts, self.parts.stage.name, self.stream
        if not (self.processes.handed(name) / "config.json").exists():
            save_model(parts.model, self.processes.handed(name))
        async with joined(self.processes.hub, "learner", "learner", dict) as client:
            incarnation = await stream.begin(client, name)
            kind, folder = self.run.roles.channel, self.processes.weights
            publisher = open_publisher(kind, parts.learner.weights, folder, stream.post, incarnation)
            listening = asyncio.create_task(stream.listen())
            try:
                await publisher.publish(start)
                before = self._counts()
                spans = self.around.recorder.role("learner")
                leases = LeaseLog(self.around.schedule, threads())
                async for step in learn(stream, parts.labeller, parts.trainer, publisher, parts.plan, start, spans, leases):
                    now = self._counts()
                    yield replace(step, metrics=step.metrics | _rates(before, now))
                    before = now
            finally:
                listening.cancel()
                publisher.close()
            await stream.end(name)

    def _counts(self) -> Metrics:
        """Sums over the generators, and the stream's counts of what was wasted."""
        sums: Metrics = {}
        for told in self.stream.told.values():
            for name, value in told.items():
                sums[name] = sums.get(name, 0.0) + value
        wasted = ("returned", "refused", "dropped", "tokens_dropped", "tokens_masked")
        return sums | {f"flow/{name}": float(self.stream.stats[name]) for name in wasted if name in self.stream.stats}


def _rates(before: Metrics, now: Metrics) -> Metrics:
    # Counts fall where a generator was started again.
    drawn, busy = (max(0.0, now.get(name, 0.0) - before.get(name, 0.0)) for name in ("generated_tokens", "busy_seconds"))
    flow = {name: value for name, value in now.items() if name.startswith("flow/") and value}
    return {"generation/tokens_per_second": drawn / busy if busy else 0.0, "seconds/generated": busy} | flow
