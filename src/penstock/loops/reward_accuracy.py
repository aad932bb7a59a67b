"""Rewards audited by people: how often they agree with labels of texts."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np

from penstock.algos.completions import completed
from penstock.config.run import DataSpec
from penstock.core.contracts import Reward
from penstock.core.errors import DataError, RewardError
from penstock.core.types import Group, Metrics, Sample, SampleKey
from penstock.data.render import Answered
from penstock.data.sampler import examples
from penstock.data.texts import example_texts, reader
from penstock.models.text import Text


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
