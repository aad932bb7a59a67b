"""An online stage whose other roles are processes: the learner's side."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from penstock.cli.online import OnlineParts
from penstock.cli.supervise import rules_of
from penstock.core.run import Run
from penstock.core.spans import Recorder
from penstock.core.types import Metrics
from penstock.flow.remote import RemoteLeasing, joined
from penstock.loops.learn import Step, learn
from penstock.models.files import save_model
from penstock.weights.channels import open_publisher


@dataclass(frozen=True)
class Processes:
    """What the learner knows of the run's other processes: where the hub is, where weights and models go through."""

    hub: Mapping[str, str]
    weights: Path
    folder: Path
    threads: int

    def handed(self, stage: str) -> Path:
        """The folder of the model that a stage begins with, for the roles that need its shape and its tokenizer."""
        return self.folder / "roles" / stage


class ProcsFlow:
    """The learner's flow: batches come from the hub, weights go out through a channel."""

    def __init__(
        self, parts: OnlineParts, run: Run, processes: Processes, recorder: Recorder, report: Callable[..., None]
    ) -> None:
        self.parts, self.run, self.processes, self.recorder = parts, run, processes, recorder
        rules = rules_of(parts.stage, processes=True, references=run.roles.references)
        self.stream = RemoteLeasing(rules, report)

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
            try:
                await publisher.publish(start)
                before = self._counts()
                spans = self.recorder.role("learner")
                async for step in learn(stream, parts.labeller, parts.trainer, publisher, parts.plan, start, spans):
                    now = self._counts()
                    yield replace(step, metrics=step.metrics | _rates(before, now))
                    before = now
            finally:
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
