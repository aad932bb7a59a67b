"""Groups to reward."""

import asyncio

import numpy as np

from penstock.config.run import RewardSpec
from penstock.core.types import Group, Prompt, PromptKey, Sample, SampleKey
from penstock.data.resolve import register
from penstock.rewards.runner import Mixture

KEY = PromptKey("gsm8k", 0, 17)


def make_sample(text="42", index=0, actions=3, **fields):
    """Two prompt tokens, then ``actions`` action tokens."""
    length = 2 + actions
    return Sample(
        key=SampleKey(KEY, index),
        columns={"tokens_T": np.arange(length, dtype=np.int32)},
        action_T=np.arange(length) >= 2,
        logp_T=np.zeros(length, np.float32),
        version_T=np.where(np.arange(length) >= 2, 0, -1).astype(np.int32),
        finish="stop",
        text=text,
        **fields,
    )


def make_group(*texts, columns=None):
    samples = tuple(make_sample(text, index) for index, text in enumerate(texts))
    return Group(Prompt(KEY, "question", columns={"answer": "42"} if columns is None else columns), samples)


def mixture(*functions, **fields):
    """Rewards called r0, r1, … out of plain functions."""
    specs = [RewardSpec(function=register(function), name=f"r{i}", **fields) for i, function in enumerate(functions)]
    return Mixture(tuple(specs))


def score(reward, group):
    async def once():
        try:
            return await reward(group)
        finally:
            await reward.close()

    return asyncio.run(once())
