"""A control stage whose actors are processes: the learner's side. Fragments come from the hub, weights go out to the actors."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace

from penstock.config.run import Run
from penstock.config.spec import require
from penstock.control.fragments import collected_of
from penstock.loops.learn import Step
from penstock.models.control import save_policy
from penstock.runtime.remote import RemoteLearner, joined
from penstock.runtime.stages.control import ControlRuntime
from penstock.runtime.stages.remote_online import generation_rates
from penstock.runtime.supervise import rules_of
from penstock.stream.lag import lag_counts, lag_metrics
from penstock.stream.leases import Lease
from penstock.weights.channels import channel


@dataclass(kw_only=True)
class RemoteControl(ControlRuntime):
    """Batch after batch of leased fragments: train, publish, release. The gate bounds how old their weights are."""

    run: Run

    def __post_init__(self) -> None:
        super().__post_init__()
        assert self.context.bootstrap is not None
        require(
            self.run.roles.channel != "process group",
            "roles.channel=process group is for vLLM's workers; set shared memory or disk for actors",
        )
        self.bootstrap = self.context.bootstrap
        self.stream = RemoteLearner(rules_of(self.stage), self.context.report)
        self.holders = {**self.holders, "stream": self.stream}
        self.acknowledge = self.stream.acknowledge  # type: ignore[method-assign]

    async def steps(self, start: int) -> AsyncGenerator[Step, None]:
        """Begin the stage at the hub with the policy that it starts from, train, end it."""
        name, stream = self.stage.name, self.stream
        policy_folder = self.bootstrap.stage_start(name)
        if not (policy_folder / "config.json").exists():
            policy_folder.parent.mkdir(parents=True, exist_ok=True)
            save_policy(self.actor.policy, policy_folder)
        async with joined(self.bootstrap, "learner", "learner", dict) as hub:
            learner_epoch = await stream.begin(hub, name)
            weights = self.trainer.learner.weights
            publisher = channel(self.run.roles.channel).publisher(
                weights, self.bootstrap.weights, stream.announce, learner_epoch
            )
            listening = asyncio.create_task(stream.listen())
            try:
                await publisher.publish(start)
                before = stream.counts
                for index in range(start, self.stage.steps):
                    if self.watcher.over:
                        break
                    step, lease = await self._step(index)
                    await publisher.publish(index + 1)
                    rates, before = generation_rates(before, stream.counts), stream.counts
                    yield replace(step, metrics=step.metrics | rates | stream.machines)
                    await stream.release(lease)
            finally:
                listening.cancel()
                publisher.close()
            await stream.end()

    async def _step(self, index: int) -> tuple[Step, Lease]:
        """Train on the next batch; gives its step and its lease."""
        began, spans = time.perf_counter(), self.context.recorder.role("learner")
        with spans.span("wait", step=index):
            lease = await self.stream.lease(version=index)
        step = self.learned(index, [collected_of(group) for group in lease.groups], time.perf_counter() - began)
        self.stream.trained(lease)
        lags = lag_metrics(lag_counts(lease.groups, index))
        return replace(step, metrics=step.metrics | lags), lease
