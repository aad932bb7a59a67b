"""Evaluations of a stage: held-out prompts sampled and scored, and the rewards themselves audited by human labels."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from penstock.config.run import DataSpec, EvaluationSpec, Run
from penstock.config.stage import Stage
from penstock.core.contracts import Reward
from penstock.core.errors import SpecError
from penstock.core.types import Metrics, Sampling
from penstock.data.units import prompts_of
from penstock.engine.encoder_decoder import embedded_generator
from penstock.engine.generator import EmbeddedGenerator
from penstock.envs.making import environments
from penstock.loops.evaluate import best_of, evaluate, reward_accuracy
from penstock.loops.rollout import Rollout
from penstock.models.families import Model
from penstock.runtime.build import Models, StageRewards, Unscored, check_prompts
from penstock.runtime.context import in_one_process
from penstock.runtime.folder import RunFolder
from penstock.runtime.stages import Evaluation, Measure, prepare
from penstock.train.device import set_up
from penstock.train.ranks import AnyLearner


def measured(
    spec: EvaluationSpec | None, roll: Rollout, rewards: StageRewards | Unscored, models: Models, model: Model, base: Path
) -> tuple[Measure | None, list[StageRewards | Unscored]]:
    """What evaluates an online stage, if it is evaluated, and all rewards of the stage, which must be closed."""
    if spec is None:
        return None, [rewards]
    scored = StageRewards(spec.rewards, models, model.text, base) if spec.rewards else rewards
    measure = evaluator(spec, roll, scored, model, base)
    if spec.labelled is not None:
        measure = audited(measure, spec.labelled, rewards, model, base)
    return measure, [rewards, scored] if spec.rewards else [rewards]


def evaluator(spec: EvaluationSpec, roll: Rollout, rewards: Reward, model: Model, base: Path) -> Measure:
    """A function that samples and scores the held-out prompts under the present weights, by an embedded generator of its own,
    which gives its cache back after each time: training needs the memory."""
    source = prompts_of(replace(spec.data, shuffle=False), base, 0, model.text)
    check_prompts(source, spec.data, len(source), model)
    held_out = [source(ordinal) for ordinal in range(len(source))]
    longest = spec.max_new_tokens or roll.sampling.max_new_tokens
    sampling = replace(roll.sampling, temperature=spec.temperature, max_new_tokens=longest)
    engine = cast(EmbeddedGenerator, roll.generator)
    held_out_roll = replace(roll, reward=rewards, samples=spec.samples, sampling=sampling, greedy=False)

    async def measure() -> Evaluation:
        metrics, groups = await evaluate(held_out_roll, held_out)
        metrics |= best_of(groups, spec.best_of, spec.rank_by)
        for beta in spec.betas:
            shifted, _ = await evaluate(replace(held_out_roll, sampling=replace(sampling, beta=beta)), held_out)
            metrics |= {name.replace("/", f"/beta={beta:g}/", 1): value for name, value in shifted.items()}
        engine.release()
        return metrics, groups

    return measure


def sampled(spec: EvaluationSpec, model: Model, models: Models, sampling: Sampling, base: Path) -> tuple[Measure, StageRewards]:
    """What evaluates a model whose stage generates nothing else, and its rewards, which must be closed."""
    rewards = StageRewards(spec.rewards, models, model.text, base)
    roll = Rollout(embedded_generator(model), environments(model.text), rewards, sampling, 1)
    return evaluator(spec, roll, rewards, model, base), rewards


def refreshed(learner: AnyLearner, measure: Measure) -> Measure:
    """``measure`` with the model brought up to date before, where the learner trains shards of it."""

    async def measured_now() -> Evaluation:
        learner.refresh()
        found: Evaluation = await measure()
        return found

    return measured_now


def audited(measure: Measure, data: DataSpec, rewards: Reward, model: Model, base: Path) -> Measure:
    """``measure`` with the accuracy of the stage's rewards on labelled texts added; that is computed once."""
    known: Metrics = {}

    async def both() -> Evaluation:
        if not known:
            known.update(await reward_accuracy(data, rewards, model.text, base))
        metrics, groups = await measure()
        return {**metrics, **known}, groups

    return both


def pick(made: Run, name: str) -> Stage:
    """The stage to evaluate with: an online one, or one whose evaluation names rewards of generated samples."""
    able = [s for s in made.stages if s.pinned and s.evaluation is not None and (s.uses_stream or s.evaluation.rewards)]
    chosen = [stage for stage in able if stage.name == name] if name else able[-1:]
    if not chosen:
        known = ", ".join(stage.name for stage in able)
        if not known:
            raise SpecError("no stage has an evaluation of samples; set evaluation=EvaluationSpec(data=…) in the recipe")
        raise SpecError(f"no stage{f' {name!r}' if name else ''} with an evaluation of samples; there are: {known}")
    return chosen[0]


def measure(stage: Stage, made: Run, folder: Path, model: str) -> tuple[dict[str, float], Sequence[Any]]:
    """Metrics and groups of one evaluation."""
    device = set_up(made.device, made.threads)
    models = Models(lambda name: RunFolder(folder).stage_model(made, name), device, made.seed)
    ready = prepare(replace(cast(Any, stage), model=replace(stage.model, path=model)), in_one_process(made), models, Path.cwd())

    async def once() -> tuple[dict[str, float], Sequence[Any]]:
        try:
            assert ready.evaluate is not None
            return await ready.evaluate()
        finally:
            await ready.close()

    return asyncio.run(once())
