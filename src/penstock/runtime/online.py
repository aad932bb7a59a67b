"""What an online stage is made of, wherever its roles live, and its flow within one process."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from penstock.config.run import Online, Run
from penstock.config.strategies import OneDevice
from penstock.core.errors import ModelError, SpecError
from penstock.core.tape import LeaseLog, Tape
from penstock.core.types import GeneratorStats, Metrics, Prompt, Version
from penstock.data.sampler import Sampler, prompts
from penstock.engine.encoder_decoder import embedded_generator
from penstock.loops.learn import Labeller, Plan, Step, Trainer, learn
from penstock.loops.rollout import Rollout, rollout
from penstock.models.language_model import LanguageModel
from penstock.models.language_policy import LanguagePolicy
from penstock.observe.rules import EXACT, ROUNDED
from penstock.observe.sentinels import Sentinels
from penstock.runtime.build import Models, StageRewards, check_prompts, corpus_of, environments, seed_of
from penstock.runtime.context import StageContext
from penstock.runtime.supervise import rules_of
from penstock.stream.stream import Stream
from penstock.train.device import threads
from penstock.train.learner import LearnerPlan, Scoring
from penstock.train.ranks import AnyLearner, learner_of
from penstock.weights.alias import AliasChannel


@dataclass
class OnlineParts:
    """The learner and what belongs to it. ``roll`` generates with the learner's own parameters, to evaluate."""

    stage: Online
    model: LanguageModel
    learner: AnyLearner
    labeller: Labeller
    trainer: Trainer
    plan: Plan
    source: Sampler[Prompt]
    rewards: StageRewards
    roll: Rollout


def online_parts(stage: Online, run: Run, models: Models, base: Path, reference_elsewhere: bool = False) -> OnlineParts:
    """Load and build what an online stage needs; errors in data, models or rewards surface here."""
    algorithm: Any = stage.algorithm
    model = models.load(stage.model, corpus_of(stage.data, base))
    needs = algorithm.needs & {"teacher"} if reference_elsewhere else algorithm.needs & {"reference", "teacher"}
    sampling = replace(stage.sampling, seed=seed_of(run.seed, stage.name))
    frozen = models.reference(stage, model, sampling.temperature) if needs else None
    if "teacher" in algorithm.needs and not isinstance(stage.learner.strategy, OneDevice):
        raise SpecError(
            f"{stage.name}: a learner on ranks computes no divergence from a teacher; set learner.strategy=OneDevice"
        )
    updates = stage.steps * stage.epochs * stage.minibatches
    policy = LanguagePolicy(model, sampling.temperature, stage.learner.share_prefix)
    learner = learner_of(policy, stage.learner, LearnerPlan(total_steps=updates, seed=sampling.seed))
    if "teacher" in algorithm.needs and frozen is not None:
        check_vocabulary(frozen.model, model, stage.name)
        policy.teacher = frozen.teaching(algorithm.loss().divergence)
    rewards = StageRewards(stage.rewards, models, model.text, base)
    generator = embedded_generator(model, slots=stage.slots)
    roll = Rollout(
        generator,
        environments(model.text, stage.environment, base),
        rewards,
        sampling,
        stage.samples,
        "greedy" in algorithm.needs,
    )
    start = algorithm.initial_coefficients()
    labeller = Labeller(algorithm, learner, Scoring(frozen) if frozen else None, start, stage.scaling)
    source = prompts(stage.data, base, sampling.seed)
    check_prompts(source, stage.data, stage.steps * stage.batch * (1 + stage.dynamic_sampling), model)
    plan = Plan(stage.steps, stage.epochs, stage.minibatches, sampling.seed, look=True)
    return OnlineParts(stage, model, learner, labeller, trainer_of(algorithm, run, learner), plan, source, rewards, roll)


def trainer_of(algorithm: Any, run: Run, learner: AnyLearner) -> Trainer:
    """The trainer of an algorithm's loss, with its sentinels."""
    spec = learner.spec
    rounds = spec.compute != "float32" or (spec.lora is not None and spec.lora.quantize != "none")
    sentinels = Sentinels(run.sentinels, ROUNDED if rounds else EXACT)
    return Trainer(learner, algorithm.loss(), sentinels)


def check_vocabulary(teacher: LanguageModel, student: LanguageModel, stage: str) -> None:
    """Refuse a teacher whose tokens are others: distributions over different vocabularies cannot be compared."""
    same = teacher.text.tokenizer.get_vocab() == student.text.tokenizer.get_vocab()
    if not same or teacher.config.vocab_size != student.config.vocab_size:
        raise ModelError(f"{stage}: the teacher's vocabulary is not the student's; take one with the same tokenizer")


def rates(before: GeneratorStats, now: GeneratorStats) -> Metrics:
    """How fast and how long was generated between two looks."""
    drawn, busy = now.generated_tokens - before.generated_tokens, now.busy_seconds - before.busy_seconds
    return {"generation/tokens_per_second": drawn / busy if busy else 0.0, "seconds/generated": busy}


class RefreshingChannel:
    """Brings the generator's copy up to date where the learner trains shards, then publishes."""

    def __init__(self, learner: AnyLearner, channel: AliasChannel) -> None:
        self.learner, self.channel = learner, channel

    async def publish(self, version: Version) -> None:
        self.learner.refresh()
        await self.channel.publish(version)


class LocalFlow:
    """All roles in one process: the generator aliases the learner's parameters, or its copy of them where they are sharded."""

    def __init__(self, parts: OnlineParts, context: StageContext) -> None:
        self.parts, self.context, schedule = parts, context, context.schedule
        self.stream = Stream(rules_of(parts.stage))
        self.generator = embedded_generator(parts.model, slots=parts.stage.slots)
        self.generator.spans = context.recorder.role("generator-0")
        self.generator.tape = Tape.next_take(schedule, "generator-0") if schedule else Tape()

    aside: Any = None
    """Nobody else evaluates."""

    def background(self) -> list[Any]:
        roll = replace(self.parts.roll, generator=self.generator, tape=self.generator.tape)
        return [rollout(self.stream, self.parts.source, roll)]

    async def steps(self, start: int) -> AsyncGenerator[Step, None]:
        """Train from a step on."""
        parts, generator = self.parts, self.generator
        generator.version = start
        generator.tape.load(start, 0)
        channel = RefreshingChannel(parts.learner, AliasChannel([generator], parts.stage.kv))
        before = generator.stats()
        spans, leases = self.context.recorder.role("learner"), LeaseLog(self.context.schedule, threads())
        async with aclosing(
            learn(self.stream, parts.labeller, parts.trainer, channel, parts.plan, start, spans, leases)
        ) as trained:
            async for step in trained:
                found, before = rates(before, generator.stats()), generator.stats()
                yield replace(step, metrics=step.metrics | found)
