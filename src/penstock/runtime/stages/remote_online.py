"""An online stage whose other roles are processes: the learner's side."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from penstock.config.engine_choice import sends_adapters
from penstock.config.roles import columns
from penstock.config.run import Run
from penstock.core.contracts import State
from penstock.core.sentinels import Alarm
from penstock.core.tape import LeaseLog
from penstock.core.types import Metrics
from penstock.loops.evaluation_queue import Answer
from penstock.loops.learn import Step, learn
from penstock.models.files import save_model
from penstock.runtime.build import Models
from penstock.runtime.context import StageContext
from penstock.runtime.remote import RemoteLearner, joined
from penstock.runtime.stages.online import OnlineParts, OnlineRuntime, read_tokens
from penstock.runtime.supervise import evaluation_folder, rules_of
from penstock.train.device import threads
from penstock.weights.channels import channel
from penstock.weights.snapshot import Post

NOTHING = -1
"""The step of no evaluation."""


class RemoteEvaluation:
    """Evaluations by another process, of the version that they are asked for, while training goes on.

    A checkpoint holds the step whose evaluation is open, which is then the step of the checkpoint itself: a resume asks again.
    """

    def __init__(self, stream: RemoteLearner, open_channel: Callable[[Post, int], Any]) -> None:
        self.stream, self.open_channel = stream, open_channel
        self.open = NOTHING
        """The step whose evaluation is not answered yet."""
        self._channel: Any = None
        self._heard: list[Answer] = []

    async def begin(self, learner_epoch: int) -> None:
        """Training begins or goes on: ask again for what the checkpoint says was open."""
        self._channel = self.open_channel(self._announce, learner_epoch)
        if self.open != NOTHING:
            await self._channel.publish(self.open)

    async def ask(self, step: int) -> None:
        """Have the weights as they are evaluated. Waits where the evaluation before is not done yet."""
        self._heard = await self.answers(wait=True)
        self.open = step
        await self._channel.publish(step)

    async def _announce(self, manifest: Mapping[str, Any]) -> None:
        await self.stream.hub.ask(self.open, dict(manifest))

    async def answers(self, wait: bool = False) -> list[Answer]:
        """What was measured since the last call; ``wait`` for the evaluation that is under way."""
        found, self._heard = [*self._heard, *await self.stream.hub.answers(wait)], []
        self.open = NOTHING if any(step == self.open for step, _, _ in found) else self.open
        return found

    async def settle(self, step: int) -> list[Answer]:
        """Before a checkpoint at ``step``: what was measured, and waits for what was asked before, whose weights it lacks."""
        return await self.answers(wait=self.open not in (NOTHING, step))

    def state(self) -> State:
        return State({}, {"open": self.open})

    def load_state(self, state: State) -> None:
        self.open = int(state.values["open"])

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None


class RemoteOnline(OnlineRuntime):
    """The learner's side where the other roles are processes: batches come from the hub, weights go out through a channel."""

    def __init__(self, parts: OnlineParts, run: Run, models: Models, base: Path, context: StageContext) -> None:
        super().__init__(parts, run, models, base, context)
        assert context.bootstrap is not None
        self.bootstrap = context.bootstrap
        self.stream = RemoteLearner(rules_of(parts.stage, columns(run, parts.stage)), context.report)
        self.hold(self.stream)
        self.acknowledge = self.stream.acknowledge  # type: ignore[method-assign]
        self._evaluation: RemoteEvaluation | None = None
        if run.roles.evaluator and parts.stage.evaluation is not None:
            publisher = partial(self._publisher, evaluation_folder(self.bootstrap.weights))
            self.elsewhere = self._evaluation = RemoteEvaluation(self.stream, publisher)
            self.holders = {**self.holders, "evaluation": self._evaluation}

    def _publisher(self, folder: Path, post: Post, learner_epoch: int) -> Any:
        kind = self.run.roles.channel
        generators = self.run.roles.generators if folder == self.bootstrap.weights else 1
        options: dict[str, Any] = {"generators": generators, "report": self.context.report} if kind == "process group" else {}
        if kind == "process group" and folder == self.bootstrap.weights:
            options["departure"] = self.stream.hub.departure
        trained = folder == self.bootstrap.weights and sends_adapters(self.run, self.parts.stage)
        weights = self.parts.model.adapter_weights if trained else self.parts.learner.weights
        return channel(kind).publisher(weights, folder, post, learner_epoch, **options)

    async def steps(self, start: int) -> AsyncGenerator[Step, None]:
        """Begin the stage at the hub with the model that it starts from, train, end it."""
        parts, name, stream = self.parts, self.parts.stage.name, self.stream
        if not (self.bootstrap.stage_start(name) / "config.json").exists():
            save_model(parts.model, self.bootstrap.stage_start(name), adapted=not sends_adapters(self.run, parts.stage))
        async with joined(self.bootstrap, "learner", "learner", dict) as hub:
            learner_epoch = await stream.begin(hub, name)
            publisher = self._publisher(self.bootstrap.weights, stream.announce, learner_epoch)
            listening = asyncio.create_task(stream.listen())
            try:
                await publisher.publish(start)
                if self._evaluation is not None:
                    await self._evaluation.begin(learner_epoch)
                before = self.stream.counts
                spans = self.context.recorder.role("learner")
                leases = LeaseLog(self.context.schedule, threads())
                trained = learn(stream, parts.labeller, parts.trainer, publisher, parts.plan, start, spans, leases)
                async with aclosing(trained):
                    async for step in trained:
                        now = self.stream.counts
                        alarms = (*step.alarms, *self._compared(step.index))
                        found = generation_rates(before, now) | self._wasted() | self.counts | stream.machines
                        yield replace(step, metrics=step.metrics | found, alarms=alarms)
                        before = now
            finally:
                listening.cancel()
                publisher.close()
                if self._evaluation is not None:
                    self._evaluation.close()
            await stream.end()
        parts.learner.refresh()

    def _compared(self, step: int) -> Iterator[Alarm]:
        """Alarms about generators whose weights are not those that went out. Raises SentinelError where that is fatal."""
        held, self.stream.held = self.stream.held, []
        for report in held:
            ours = self.stream.sums.get((report["learner_epoch"], report["version"]))
            if ours is not None:
                own, theirs = ({f"bucket {n}": sum_ for n, sum_ in enumerate(sums)} for sums in (ours, report["sums"]))
                yield from self.parts.trainer.watcher.compare_weights(report["version"], own, theirs, step)

    def _wasted(self) -> Metrics:
        """The stream's counts of what was wasted."""
        names = ("returned", "refused", "dropped", "tokens_dropped", "tokens_masked")
        return {f"flow/{name}": float(count) for name in names if (count := self.stream.stats.get(name))}


Counts = Mapping[str, Mapping[str, float]]


def generation_rates(before: Counts, now: Counts) -> Metrics:
    """Tokens a second of all generators together, the seconds in which they were busy, and what they read, between two looks.

    Each generator's own rate is added up: they work side by side. Counts fall where one was started again.
    """
    names = ("generated_tokens", "busy_seconds", "prefilled_tokens", "reused_tokens")
    rate, total = 0.0, dict.fromkeys(names, 0.0)
    for name, counts in now.items():
        last = before.get(name, {})
        grown = {count: max(0.0, counts.get(count, 0.0) - last.get(count, 0.0)) for count in names}
        rate += grown["generated_tokens"] / grown["busy_seconds"] if grown["busy_seconds"] else 0.0
        total = {count: total[count] + grown[count] for count in names}
    read = read_tokens(total["prefilled_tokens"], total["reused_tokens"]) if total["prefilled_tokens"] else {}
    return read | {"generation/tokens_per_second": rate, "seconds/generated": total["busy_seconds"]}
