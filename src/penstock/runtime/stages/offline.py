"""An offline stage: SFT, reward models, preferences."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from penstock.config.run import Offline, Run
from penstock.core.algorithm import FromData
from penstock.core.types import Sampling, Unit
from penstock.data.units import Units
from penstock.loops.columns import labelled
from penstock.loops.learn import Step, Trainer, Watcher, offline
from penstock.models.families import Model, drawing, policy_of
from penstock.models.language_model import Head
from penstock.observe.first_rows import FirstRow, remarks_on_prompts, rows_of_units
from penstock.observe.machine import seen
from penstock.runtime.build import Models, StageRewards, corpus_of, seed_of, trainer_of
from penstock.runtime.context import StageContext
from penstock.runtime.measuring import refreshed, sampled
from penstock.runtime.stages import Evaluation, Measure, StageRuntime
from penstock.train.learner import LearnerPlan, Scoring
from penstock.train.ranks import AnyLearner, learner_of


@dataclass
class OfflineRuntime(StageRuntime):
    """Batches straight from the data."""

    stage: Offline
    context: StageContext
    model: Model
    learner: AnyLearner
    trainer: Trainer
    label: Callable[[Sequence[Unit]], Sequence[Unit]]
    units: Units
    epoch: int
    evaluate: Measure | None = None
    rewards: StageRewards | None = None

    def __post_init__(self) -> None:
        self.holders = {"learner": self.learner, "sentinels": self.trainer.watcher}

    @property
    def watcher(self) -> Watcher:
        return self.trainer.watcher

    async def steps(self, start: int) -> AsyncGenerator[Step, None]:
        stage, spans = self.stage, self.context.recorder.role("learner")
        trained = offline(self.units, self.trainer, self.label, batch=stage.batch, steps=stage.steps, start=start, spans=spans)
        async with aclosing(trained):
            async for step in trained:
                yield replace(step, metrics=step.metrics | self.units.counts | seen("learner"))
        self.learner.refresh()

    def first_rows(self, count: int, scored: bool = False) -> list[FirstRow]:
        units: Sequence[Unit] = [self.units(ordinal) for ordinal in range(min(count, len(self.units)))]
        if not scored:
            return rows_of_units(units, self.model.text, {})
        units, learner = self.label(units), self.learner
        return rows_of_units(
            units, self.model.text, learner.score(units, self.stage.algorithm.assessed_by), learner.policy.per_row
        )

    async def close(self) -> None:
        self.learner.close()
        if self.rewards is not None:
            await self.rewards.close()


def prepare(stage: Offline, run: Run, models: Models, base: Path, context: StageContext) -> OfflineRuntime:
    """Load and build what the stage needs. Every row that will be trained on is looked at."""
    algorithm: FromData = stage.algorithm
    head: Head = "score" if "score" in algorithm.heads else "lm"
    models.compute = stage.learner.dtype
    model = drawing(models.load(stage.model, corpus_of(stage.data, base), head), None, algorithm)
    seed = seed_of(run.seed, stage.name)
    units = Units(stage.data, base, seed, algorithm, model.text, model.context)
    if units.counts:
        counts = {name.removeprefix("data/"): count for name, count in units.counts.items()}
        context.report("long rows", limit=units.limit, kept=len(units), **counts)
    every = (units(ordinal) for ordinal in range(min(len(units), stage.steps * stage.batch)))
    algorithm = algorithm.fitted(every)
    for _ in every:  # a row that cannot be trained on is refused before the first step
        pass
    frozen: Any = models.reference(stage, model) if algorithm.reference else None
    reference = Scoring(frozen) if frozen is not None else None
    model.add_heads(algorithm.heads)
    policy: Any = policy_of(model, share_prefix=stage.learner.share_prefix)
    policy.teacher = frozen.teaching(algorithm.teacher) if algorithm.teacher is not None else None
    whole = stage.evaluation is not None and bool(stage.evaluation.rewards)
    learner = learner_of(policy, stage.learner, LearnerPlan(total_steps=stage.steps, seed=seed, whole=whole))
    trainer = trainer_of(algorithm, run, learner, model)
    label = partial(labelled, algorithm, learner=learner, reference=reference)

    made = OfflineRuntime(stage, context, model, learner, trainer, label, units, len(units))
    made.remarks = remarks_on_prompts(units.prompt(0), stage.model.path, model.text)
    if stage.evaluation is not None and stage.evaluation.rewards:
        sampling = Sampling(max_new_tokens=model.context, seed=seed)
        measure, made.rewards = sampled(stage.evaluation, model, models, sampling, base)
        made.evaluate = refreshed(learner, measure)
    elif stage.evaluation is not None:
        held_out = Units(replace(stage.evaluation.data, shuffle=False), base, 0, algorithm, model.text, model.context)
        labelled_units = label([held_out(ordinal) for ordinal in range(len(held_out))], baseline=False)

        async def assess() -> Evaluation:
            found = algorithm.assess(labelled_units, learner.score(labelled_units, algorithm.assessed_by))
            return {f"evaluation/{name}": value for name, value in found.items()}, ()

        made.evaluate = assess
    return made
