"""An online stage: what it is made of, wherever its roles live, and how it goes in one process."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from penstock.config.run import Online, Run
from penstock.core.algorithm import FromSamples
from penstock.core.contracts import Holder
from penstock.core.errors import ModelError, SpecError
from penstock.core.tape import LeaseLog, Tape
from penstock.core.types import GeneratorStats, Metrics, Prompt, Version
from penstock.data.resolve import resolve
from penstock.data.sampler import Sampler
from penstock.data.units import prompts_of
from penstock.engine.encoder_decoder import embedded_generator
from penstock.engine.generator import EmbeddedGenerator
from penstock.envs.making import environments
from penstock.loops.learn import Labeller, Plan, Step, Trainer, Watcher, learn
from penstock.loops.rollout import Rollout, rollout
from penstock.models.families import Model, drawing, policy_of
from penstock.observe.first_rows import remarks_on_prompts
from penstock.observe.machine import seen
from penstock.observe.rules import bounds_of
from penstock.runtime.build import Models, StageRewards, Unscored, check_prompts, corpus_of, seed_of, trainer_of
from penstock.runtime.context import StageContext
from penstock.runtime.measuring import measured, refreshed
from penstock.runtime.stages import StageRuntime
from penstock.runtime.supervise import rules_of
from penstock.stream.stream import LearnerClient, Stream, Worker
from penstock.train.device import threads
from penstock.train.learner import LearnerPlan, Scoring
from penstock.train.ranks import AnyLearner, learner_of
from penstock.weights.alias import AliasChannel


@dataclass
class OnlineParts:
    """The learner and what belongs to it. ``roll`` generates with the learner's own parameters, to evaluate."""

    stage: Online
    model: Model
    learner: AnyLearner
    labeller: Labeller
    trainer: Trainer
    plan: Plan
    source: Sampler[Prompt]
    rewards: StageRewards | Unscored
    """Those of processes of their own are not loaded here, unless an evaluation here needs them."""
    roll: Rollout
    generator: Callable[..., EmbeddedGenerator]
    """Makes an embedded generator of the stage's size over a model."""


def online_parts(stage: Online, run: Run, models: Models, base: Path, elsewhere: bool = False) -> OnlineParts:
    """Load and build what an online stage needs; errors in data, models or rewards surface here.

    ``elsewhere``: the other roles are processes.
    """
    algorithm: FromSamples = stage.algorithm
    models.compute = stage.learner.dtype
    model = drawing(models.load(stage.model, corpus_of(stage.data, base)), stage.denoising, algorithm)
    model.add_heads(algorithm.heads)
    taught = algorithm.teacher
    here = taught is not None if elsewhere and run.roles.references else algorithm.reference
    sampling = replace(stage.sampling, seed=seed_of(run.seed, stage.name))
    frozen = models.reference(stage, model, sampling.temperature) if here else None
    if taught is not None and stage.strategy.ranks > 1:
        raise SpecError(
            f"{stage.name}: a learner on ranks computes no divergence from a teacher; set learner.strategy=OneDevice"
        )
    updates = stage.steps * stage.epochs * stage.minibatches
    policy: Any = policy_of(model, sampling.temperature, stage.learner.share_prefix)
    policy.judge = resolve(algorithm.judge, base) if algorithm.judge else None
    whole = not elsewhere or (stage.evaluation is not None and not run.roles.evaluator)
    learner = learner_of(policy, stage.learner, LearnerPlan(total_steps=updates, seed=sampling.seed, whole=whole))
    if taught is not None and frozen is not None:
        check_vocabulary(frozen.model, model, stage.name)
        policy.teacher = frozen.teaching(taught)
    scored = not elsewhere or stage.evaluation is not None  # the learner measures the first and the last weights itself
    rewards = StageRewards(stage.rewards, models, model.text, base) if scored else Unscored()
    cache_gb = run.roles.engine.cache_of_ours()
    generator = partial(embedded_generator, max_running=stage.max_running, cache_gb=cache_gb, routes=stage.replays_routes)
    roll = Rollout(
        generator(model), environments(model.text, stage.environment, base), rewards, sampling, stage.samples, algorithm.greedy
    )
    labeller = Labeller(algorithm, learner, Scoring(frozen) if frozen else None, stage.scaling)
    source = prompts_of(stage.data, base, sampling.seed, model.text)
    check_prompts(source, stage.data, stage.steps * stage.batch * (1 + stage.dynamic_sampling), model, elsewhere)
    plan = Plan(stage.steps, stage.epochs, stage.minibatches, sampling.seed, look=True)
    trainer = trainer_of(algorithm, run, learner, model)
    return OnlineParts(stage, model, learner, labeller, trainer, plan, source, rewards, roll, generator)


def check_vocabulary(teacher: Any, student: Any, stage: str) -> None:
    """Refuse a teacher whose tokens are others: distributions over different vocabularies cannot be compared."""
    same = teacher.text.tokenizer.get_vocab() == student.text.tokenizer.get_vocab()
    if not same or teacher.config.vocab_size != student.config.vocab_size:
        raise ModelError(f"{stage}: the teacher's vocabulary is not the student's; take one with the same tokenizer")


def rates(before: GeneratorStats, now: GeneratorStats) -> Metrics:
    """How fast and how long was generated between two looks."""
    generated, busy = now.generated_tokens - before.generated_tokens, now.busy_seconds - before.busy_seconds
    read = read_tokens(now.prefilled_tokens - before.prefilled_tokens, now.reused_tokens - before.reused_tokens)
    return read | {"generation/tokens_per_second": generated / busy if busy else 0.0, "seconds/generated": busy}


def read_tokens(prefilled: float, reused: float) -> Metrics:
    """Tokens that were read before others were generated: those that went through the model, and those that a cache had."""
    share = {"tokens/reused_share": reused / (prefilled + reused)} if prefilled + reused else {}
    return {"tokens/prefilled": float(prefilled), "tokens/reused": float(reused), **share}


class RefreshingChannel:
    """Brings the generator's copy up to date where the learner trains shards, then publishes."""

    def __init__(self, learner: AnyLearner, channel: AliasChannel) -> None:
        self.learner, self.channel = learner, channel

    async def publish(self, version: Version) -> None:
        self.learner.refresh()
        await self.channel.publish(version)


class OnlineRuntime(StageRuntime):
    """What an online stage does wherever its roles live."""

    def __init__(self, parts: OnlineParts, run: Run, models: Models, base: Path, context: StageContext) -> None:
        self.parts, self.run, self.context = parts, run, context
        self.model, self.epoch = parts.model, len(parts.source)
        self.bounds = bounds_of(run, parts.stage.learner, parts.model.config.num_hidden_layers)
        self.remarks = remarks_on_prompts(parts.source(0), parts.stage.model.path, parts.model.text)
        self.counts: Metrics = {}
        if parts.stage.data.too_long.drops:
            self.counts = {"data/dropped": float(len(parts.source.source) - self.epoch)}
            limit, dropped = parts.stage.data.too_long.tokens, self.counts["data/dropped"]
            context.report("long prompts", limit=limit, kept=self.epoch, dropped=dropped)
        measure, self._rewards = measured(parts.stage.evaluation, parts.roll, parts.rewards, models, parts.model, base)
        self.evaluate = refreshed(parts.learner, measure) if measure is not None else None
        for reward in self._rewards:
            reward.spans = context.recorder.role("evaluation" if context.bootstrap else "reward-0")

    def hold(self, stream: Holder) -> None:
        """Everything that a checkpoint must hold, ``stream`` among it."""
        parts = self.parts
        self.holders = {
            "learner": parts.learner,
            "stream": stream,
            "labeller": parts.labeller,
            "sentinels": parts.trainer.watcher,
        }

    @property
    def watcher(self) -> Watcher:
        return self.parts.trainer.watcher

    async def close(self) -> None:
        self.parts.learner.close()
        for reward in self._rewards:
            await reward.close()
        self.context.recorder.end("generator-0", "reward-0", "evaluation")


class LocalOnline(OnlineRuntime):
    """All roles in one process: the generator aliases the learner's parameters, or its copy of them where they are sharded."""

    def __init__(self, parts: OnlineParts, run: Run, models: Models, base: Path, context: StageContext) -> None:
        super().__init__(parts, run, models, base, context)
        self.stream = LearnerClient(rules_of(parts.stage))
        self.hold(self.stream)
        self.acknowledge = self.stream.acknowledge  # type: ignore[method-assign]
        self.generator = parts.generator(parts.model)
        self.generator.spans = context.recorder.role("generator-0")
        self.generator.tape = Tape.next_take(context.schedule, "generator-0") if context.schedule else Tape()

    def background(self) -> list[Any]:
        """The rollout, over a stream that goes on from the checkpoint."""
        stream = self.stream.source = Stream(
            self.stream.rules, kept=self.stream.ledger, work=lambda: self.generator.stats().generated_tokens
        )
        roll = replace(self.parts.roll, generator=self.generator, tape=self.generator.tape)
        return [rollout(Worker(stream, "generator-0"), self.parts.source, roll)]

    async def steps(self, start: int) -> AsyncGenerator[Step, None]:
        parts, generator = self.parts, self.generator
        generator.version = start
        generator.tape.note("load", start, 0)
        channel = RefreshingChannel(parts.learner, AliasChannel([generator], parts.stage.kv))
        before = generator.stats()
        spans, leases = self.context.recorder.role("learner"), LeaseLog(self.context.schedule, threads())
        async with aclosing(
            learn(self.stream, parts.labeller, parts.trainer, channel, parts.plan, start, spans, leases)
        ) as trained:
            async for step in trained:
                found, before = rates(before, generator.stats()), generator.stats()
                yield replace(step, metrics=step.metrics | found | self.counts | seen("learner"))
        parts.learner.refresh()


def prepare(stage: Online, run: Run, models: Models, base: Path, context: StageContext) -> OnlineRuntime:
    """Load and build what the stage needs, with the other roles in this process or in others."""
    elsewhere = context.bootstrap is not None
    parts = online_parts(stage, run, models, base, elsewhere)
    if elsewhere:
        from penstock.runtime.stages.remote_online import RemoteOnline

        return RemoteOnline(parts, run, models, base, context)
    return LocalOnline(parts, run, models, base, context)
