"""The evaluate loop: samples of held-out prompts under one version of the weights; and rewards audited by labels."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from penstock.algos.best_of import best_of_k
from penstock.algos.completions import completed
from penstock.algos.denoising import STATES, picture_of, values_of
from penstock.algos.diversity import distinct_ngrams, mean_distance
from penstock.config.run import DataSpec
from penstock.core.contracts import Reward
from penstock.core.errors import DataError, RewardError
from penstock.core.types import TOKENS, Group, Metrics, Prompt, Sample, SampleKey
from penstock.data.render import Answered
from penstock.data.sampler import examples
from penstock.data.texts import example_texts, reader
from penstock.loops.learn import episode_metrics
from penstock.loops.rollout import Rollout
from penstock.models.text import Text


async def evaluate(roll: Rollout, prompts: Sequence[Prompt]) -> tuple[Metrics, list[Group]]:
    """Generate and score held-out prompts; gives ``evaluation/…`` metrics and the groups.

    Besides rewards and lengths: ``distinct_1`` to ``distinct_3``, the share of n-grams of answer tokens that are different; and
    ``arm/NAME``, the reward of each arm of an experiment that the prompts' column ``arm`` names; of pictures ``diversity``, how
    far apart those of one prompt are.

    Takes no slots and trains nothing. Waits for the generator and the rewards. All tokens of a group must come from one
    version, which the caller ensures by not publishing meanwhile.

    Raises:
        RewardError: not a single sample could be scored.
    """
    groups = list(await asyncio.gather(*(roll.group(prompt) for prompt in prompts)))
    samples = [sample for group in groups for sample in group.samples]
    scored = [sample for sample in samples if sample.valid]
    if not scored:
        reason = next((sample.error for sample in samples if sample.error), "no reward applies")
        raise RewardError(f"evaluation: none of {len(samples)} samples could be scored: {reason}")
    metrics: Metrics = {
        "evaluation/reward": float(np.mean([sample.reward for sample in scored])),
        "evaluation/length": float(np.mean([sample.action_T.sum() for sample in samples])),
        "evaluation/failed": float(len(samples) - len(scored)),
    }
    metrics |= _diversity(samples) | _spread(groups) | _by_arm(groups)
    metrics |= {f"evaluation/{name}": value for name, value in episode_metrics(samples).items()}
    named: dict[str, list[float]] = {}
    for sample in scored:
        for name, value in sample.extras.get("rewards", {}).items():
            if value is not None:
                named.setdefault(name, []).append(float(value))
    return metrics | {f"evaluation/{name}": float(np.mean(values)) for name, values in named.items()}, groups


def _diversity(samples: Sequence[Sample]) -> Metrics:
    if all(TOKENS not in sample.columns for sample in samples):
        return {}
    answers = [sample.tokens_T[sample.action_T].tolist() for sample in samples]
    longest = max(map(len, answers), default=0)
    return {f"evaluation/distinct_{n}": distinct_ngrams(answers, n) for n in (1, 2, 3) if n <= longest}


def _spread(groups: Sequence[Group]) -> Metrics:
    """How different the pictures of a prompt are, in values from -1 to 1."""
    shown = [[values_of(picture_of(s)) for s in group.samples if STATES in s.columns] for group in groups]
    distances = [mean_distance(np.stack(values)) for values in shown if len(values) > 1]
    return {"evaluation/diversity": float(np.mean(distances))} if distances else {}


def _by_arm(groups: Sequence[Group]) -> Metrics:
    rewards: dict[str, list[float]] = {}
    for group in groups:
        name = group.prompt.columns.get("arm")
        if isinstance(name, str):
            rewards.setdefault(name, []).extend(float(sample.reward or 0.0) for sample in group.samples if sample.valid)
    return {f"evaluation/arm/{name}": float(np.mean(values)) for name, values in rewards.items() if values}


def best_of(groups: Sequence[Group], sizes: Sequence[int], rank_by: str = "") -> Metrics:
    """``evaluation/best_of_k`` for every ``k`` of ``sizes``: the mean over prompts of the expected reward of the sample that
    ``rank_by`` (the name of a reward; empty: the reward itself) picks out of ``k``. Estimated from all samples of a prompt.

    A prompt with fewer than ``k`` scored samples says nothing about ``k`` and is left out.

    Raises:
        RewardError: no prompt has ``k`` scored samples, or a sample lacks the reward that picks.
    """
    metrics: Metrics = {}
    scored = [[sample for sample in group.samples if sample.valid] for group in groups]
    for k in sizes:
        able = [samples for samples in scored if len(samples) >= k]
        if not able:
            most = max((len(samples) for samples in scored), default=0)
            raise RewardError(f"the best of {k} is undefined: no prompt has more than {most} scored samples")
        values = [best_of_k([_rank(s, rank_by) for s in samples], [_rank(s, "") for s in samples], k) for samples in able]
        metrics[f"evaluation/best_of_{k}"] = float(np.mean(values))
    return metrics


def _rank(sample: Sample, name: str) -> float:
    score = sample.extras.get("rewards", {}).get(name) if name else sample.reward
    if score is None:
        known = ", ".join(sample.extras.get("rewards", {})) or "none"
        raise RewardError(f'{sample.key}: no reward called "{name}" that could pick the best sample; there are: {known}')
    return float(score)


def by_prompt(groups: Sequence[Group]) -> dict[str, float]:
    """The mean reward of each prompt's scored samples, by its key."""
    scored = {str(group.key): [sample.reward or 0.0 for sample in group.samples if sample.valid] for group in groups}
    return {key: float(np.mean(rewards)) for key, rewards in scored.items() if rewards}


def as_sample(example: Answered, text: Text) -> Sample:
    """A given completion as if it had been sampled, closed by the end token."""
    tokens_T, action_T = completed(example_texts(example, text), "completion", reader(example.prompt, text))
    return Sample(
        key=SampleKey(example.prompt.key, 0),
        columns={"tokens_T": tokens_T},
        action_T=action_T,
        logp_T=np.zeros(len(tokens_T), np.float32),
        version_T=np.where(action_T, 0, -1).astype(np.int32),
        finish="stop",
        text=example.answers["completion"]["content"],
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
