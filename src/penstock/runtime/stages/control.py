"""A control stage: environments and policy act, the learner trains on what they gave, step by step in one process."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from penstock.config.run import Run
from penstock.config.spec import require
from penstock.control.actor import Actor
from penstock.control.environments import Environments
from penstock.control.episodes import Camera, EpisodeLog, played
from penstock.control.fragments import Collected, Fragment, not_finite, side_by_side
from penstock.control.learning import Labeller
from penstock.control.normalizing import Normalizing
from penstock.control.novelty import Novelty
from penstock.control.preparing import labeller_of, policy_of
from penstock.control.replay import ReplayLabeller
from penstock.control.stage import Control
from penstock.core.errors import NonFiniteError
from penstock.core.types import Metrics, Version
from penstock.loops.learn import Step, Trainer, Watch, Watcher, mean_metrics
from penstock.models.control import save_policy
from penstock.observe import history
from penstock.observe.machine import seen
from penstock.observe.sentinels import Sentinels
from penstock.runtime.build import Models, seed_of
from penstock.runtime.context import StageContext
from penstock.runtime.stages import Evaluation, StageRuntime
from penstock.train.learner import DeviceLearner, LearnerPlan

LIMITS = replace(history.LIMITS, spike_times=math.inf)
"""A critic's error, and its gradient, grows with the returns of a policy that gets better, and the norm is clipped: only one
that is not finite is too large."""


@dataclass
class ControlRuntime(StageRuntime):
    """Fragment after fragment: act, train, tell. With ``max_lag`` 0 nobody acts while the learner trains."""

    stage: Control
    seed: int
    base: Path
    context: StageContext
    actor: Actor
    labeller: Labeller | ReplayLabeller
    trainer: Trainer
    normalizing: Normalizing
    held_out: Environments | None = None
    """Those of the evaluation, once there was one."""

    def __post_init__(self) -> None:
        self.log = EpisodeLog(self.actor.environments.count)
        self.holders = {"learner": self.trainer.learner, "sentinels": self.trainer.watcher, "episodes": self.log}
        self.holders["moments"] = self.normalizing
        self.novelty = None
        if self.stage.curiosity is not None:
            shape, seed = self.actor.policy.network.shape, seed_of(self.seed, "curiosity")
            given = self.stage.curiosity, shape, self.stage.algorithm.discount, seed, self.actor.policy.device
            self.novelty = self.holders["novelty"] = Novelty(*given)
        self.holders |= self.labeller.holders
        self.evaluate = self._evaluate if self.stage.evaluation else None

    @property
    def watcher(self) -> Watcher:
        return self.trainer.watcher

    async def steps(self, start: int) -> AsyncGenerator[Step, None]:
        if start:
            self.actor.begin_anew(seed_of(self.seed, f"environments from {start}"))
        spans = self.context.recorder.role("learner")
        for index in range(start, self.stage.steps):
            if self.watcher.over:
                return
            began = time.perf_counter()
            with spans.span("generate", step=index):
                collected = [self._collected(index, index * self.stage.batch + part) for part in range(self.stage.batch)]
            yield self.learned(index, collected, time.perf_counter() - began)

    def _collected(self, version: Version, number: int) -> Collected:
        fragment = self.actor.collect(version, number)
        return Collected(fragment, self.log.ended(fragment))

    def learned(self, index: int, collected: Sequence[Collected], acted: float) -> Step:
        """Train on a batch of fragments, which took ``acted`` seconds to come by."""
        began = time.perf_counter()
        spans = self.context.recorder.role("learner")
        with self.trainer.watch(index, max_lag=self.stage.max_lag) as watch, spans.span("train", step=index):
            found = self._found(collected, index, watch)
            ended = [episode for one in collected for episode in one.episodes]
            steps = sum(one.fragment.steps for one in collected)
            # A policy gradient's loss rises and falls with its advantages: no sentinel is to compare it with earlier ones.
            metrics = {"loss": found.pop("loss", 0.0)} | watch.after(found) | self.log.note(ended, steps)
        trained = time.perf_counter() - began
        metrics |= (
            seen("learner") | self.labeller.metrics | {"steps_per_second": steps / (acted + trained), "seconds/acted": acted}
        )
        logp_A = np.concatenate([one.fragment.logp_TN[one.fragment.acted_TN] for one in collected])
        metrics |= {"seconds/trained": trained, "entropy/sampled": -float(logp_A.mean())}
        if self.stage.solved is not None and self.log.solved(self.stage.solved):
            self.watcher.over = True
        return Step(index, index + 1, metrics, alarms=tuple(watch.alarms))

    def _found(self, collected: Sequence[Collected], index: int, watch: Watch) -> Metrics:
        """Metrics of training on a batch, whose moments are taken; none where an environment gave what is no number."""
        if broken := next((text for one in collected if (text := not_finite(one.fragment))), ""):
            watch.skipped(NonFiniteError(broken))
            return {}
        fragment = side_by_side([self._rewarded(one) for one in collected])
        found = self._trained(fragment, index, watch)
        self.normalizing.observe(fragment)
        return found | ({} if self.novelty is None else self.novelty.learn(fragment))

    def _rewarded(self, one: Collected) -> Fragment:
        """A fragment with the rewards that are learned from."""
        fragment = self.normalizing.scaled(one.fragment, one.actor)
        return fragment if self.novelty is None else self.novelty.rewarded(fragment, one.actor)

    def _trained(self, fragment: Fragment, index: int, watch: Watch) -> Metrics:
        """All optimizer steps on one fragment."""
        parts: list[Metrics] = []
        for units in self.labeller.minibatches(fragment, index):
            planned = index * self.stage.epochs * self.stage.minibatches + len(parts)
            parts.append(self.trainer.step(units, watch, not parts, planned))
            if watch.enough(parts[-1]):
                break
        return mean_metrics(parts)

    async def _evaluate(self) -> Evaluation:
        evaluation = self.stage.evaluation
        assert evaluation is not None
        seed = seed_of(self.seed, "evaluation")
        if self.held_out is None:
            given = self.stage.environments, seed, self.base, evaluation.episodes
            self.held_out = Environments(*given, interface=self.stage.evaluated)
        else:
            self.held_out.reset(seed)
        camera = Camera(self.held_out, evaluation.film)
        return_N, length_N = played(self.actor.policy, self.held_out, evaluation.longest, camera.shoot)
        found = {"evaluation/reward": float(np.mean(return_N)), "evaluation/length": float(np.mean(length_N))}
        return found, camera.groups(self.context.folder, f"an episode of {length_N[0]} steps", [float(return_N[0])])

    @property
    def decode(self) -> Callable[..., str]:
        """Steps of environments are no text."""
        return lambda *steps: ""

    def save(self, folder: Path) -> None:
        save_policy(self.actor.policy, folder)

    async def close(self) -> None:
        self.actor.environments.close()
        if self.held_out is not None:
            self.held_out.close()


def prepare(stage: Control, run: Run, models: Models, base: Path, context: StageContext) -> ControlRuntime:
    """Make environments, policy and learner."""
    elsewhere = context.bootstrap is not None
    require(
        elsewhere or stage.max_lag == 0,
        f"max_lag={stage.max_lag} needs actors in processes of their own; set runtime=procs or ray, or max_lag=0",
    )
    seed = seed_of(run.seed, stage.name)
    acting = stage.environments
    environments = Environments(acting, seed_of(seed, "environments"), base, interface=stage.interface, acting=True)
    named = stage.model.path and Path(models.path(stage.model.path)).expanduser()
    policy = policy_of(stage, environments, seed_of(run.seed, "model"), models.device, named or None)
    updates = stage.steps * stage.epochs * stage.minibatches
    learner = DeviceLearner(policy, stage.learner, LearnerPlan(total_steps=updates, seed=seed))
    trainer = Trainer(
        learner, stage.algorithm.loss(), Sentinels(run.sentinels, clip_norm=stage.learner.clip_norm, limits=LIMITS)
    )
    labeller = labeller_of(stage, policy, learner, seed_of(seed, "minibatches"))
    normalizing = Normalizing(policy, stage.algorithm.discount, stage.scale_rewards)
    actor = Actor(environments, policy, stage.fragment, seed, stage.explored)
    parts = (stage, seed, base, context, actor, labeller, trainer, normalizing)
    if elsewhere:
        from penstock.runtime.stages.remote_control import RemoteControl

        return RemoteControl(*parts, run=run)
    return ControlRuntime(*parts)
