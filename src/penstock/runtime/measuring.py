"""Evaluations of a stage: held-out prompts sampled and scored, and the rewards themselves audited by human labels."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np

from penstock.algos.completions import completed
from penstock.config.run import DataSpec, EvaluationSpec
from penstock.core.contracts import Reward
from penstock.core.errors import DataError, RewardError
from penstock.core.types import Group, Metrics, Sample, SampleKey, Sampling
from penstock.data.render import Example
from penstock.data.sampler import examples
from penstock.data.texts import example_texts, reader
from penstock.data.units import prompts_of
from penstock.engine.encoder_decoder import embedded_generator
from penstock.engine.generator import EmbeddedGenerator
from penstock.loops.evaluate import best_of, evaluate
from penstock.loops.rollout import Rollout
from penstock.models.language_model import LanguageModel
from penstock.models.text import Text
from penstock.runtime.build import Models, StageRewards, check_prompts, environments
from penstock.runtime.stages import Evaluation, Measure
from penstock.train.ranks import AnyLearner


def measured(
    spec: EvaluationSpec | None, roll: Rollout, rewards: StageRewards, models: Models, model: LanguageModel, base: Path
) -> tuple[Measure | None, list[StageRewards]]:
    """What evaluates an online stage, if it is evaluated, and all rewards of the stage, which must be closed."""
    if spec is None:
        return None, [rewards]
    scored = StageRewards(spec.rewards, models, model.text, base) if spec.rewards else rewards
    measure = evaluator(spec, roll, scored, model, base)
    if spec.labelled is not None:
        measure = audited(measure, spec.labelled, rewards, model, base)
    return measure, [rewards, scored] if spec.rewards else [rewards]


def evaluator(spec: EvaluationSpec, roll: Rollout, rewards: Reward, model: LanguageModel, base: Path) -> Measure:
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


def sampled(
    spec: EvaluationSpec, model: LanguageModel, models: Models, sampling: Sampling, base: Path
) -> tuple[Measure, StageRewards]:
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


def audited(measure: Measure, data: DataSpec, rewards: StageRewards, model: LanguageModel, base: Path) -> Measure:
    """``measure`` with the accuracy of the stage's rewards on labelled texts added; that is computed once."""
    known: Metrics = {}

    async def both() -> Evaluation:
        if not known:
            known.update(await reward_accuracy(data, rewards, model.text, base))
        metrics, groups = await measure()
        return {**metrics, **known}, groups

    return both


def as_sample(example: Example, text: Text) -> Sample:
    """A given completion as if it had been sampled, closed by the end token."""
    tokens_T, action_T = completed(example_texts(example, text), "completion", reader(example.prompt, text))
    return Sample(
        key=SampleKey(example.prompt.key, 0),
        columns={"tokens_T": tokens_T},
        action_T=action_T,
        logp_T=np.zeros(len(tokens_T), np.float32),
        version_T=np.where(action_T, 0, -1).astype(np.int32),
        finish="stop",
        text=example.completion,
    )


async def reward_accuracy(data: DataSpec, rewards: Reward, text: Text, base: Path) -> Metrics:
    """``evaluation/reward_accuracy``: how often the summed reward of a labelled text is positive where its ``label`` is 1 and
    negative where it is 0; a reward of exactly 0 counts one half.

    Raises:
        DataError: a row has no label of 0 or 1.
        RewardError: a text could not be scored.
    """
    items = examples(replace(data, shuffle=False), base, 0)
    rows = [items(ordinal) for ordinal in range(len(items))]
    labels = [row.prompt.columns.get("label") for row in rows]
    for row, label in zip(rows, labels, strict=True):
        if label not in (0, 1):
            raise DataError(f'{row.prompt.key}: column "label" is {label!r}; rewards are audited on rows labelled 0 or 1')
    groups = await asyncio.gather(*(rewards(Group(row.prompt, (as_sample(row, text),))) for row in rows))
    scored = [group.samples[0] for group in groups]
    failed = next((sample.error for sample in scored if sample.error is not None), None)
    if failed is not None:
        raise RewardError(f"a labelled text could not be scored, so the rewards cannot be audited: {failed}")
    signs = np.sign([float(sample.reward or 0.0) for sample in scored])
    agreed = 0.5 * (1 + signs * (2 * np.asarray(labels, float) - 1))
    return {"evaluation/reward_accuracy": float(agreed.mean())}
