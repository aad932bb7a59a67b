"""Statistics of a prompt's rewards over batches (DDPO's advantages). Pure functions; what is remembered is plain values."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from penstock.algos.advantages import STD_OFFSET, Array
from penstock.config.spec import Count, spec
from penstock.core.algorithm import scored_samples
from penstock.core.types import Group

History = Mapping[str, Sequence[float]]
"""The latest rewards of each prompt, by :func:`named`; the one that was seen last is the last."""
STATISTICS = "reward_statistics"
"""The extra of a sample: mean and deviation of its prompt's rewards."""


@spec
class TrackedRewards:
    """Of each prompt the latest rewards, those of the batch included, whose mean and deviation its advantages are measured by
    (DDPO: Black et al. 2023, arXiv 2305.13301). A prompt is its text."""

    size: Count = 32
    """Rewards of a prompt that are kept."""
    least: Count = 16
    """Rewards that a prompt needs; below them its advantages are measured by the whole batch."""
    prompts: Count = 1024
    """Prompts that are kept; beyond them the one that was not seen for longest is forgotten."""


def named(group: Group) -> str:
    """The prompt of a group, in 16 characters."""
    return hashlib.blake2b(group.prompt.text.encode(), digest_size=8).hexdigest()


def remembered(history: History, groups: Sequence[Group], kept: TrackedRewards) -> History:
    """The history with the rewards of a batch; failed samples have none."""
    found = {name: list(rewards) for name, rewards in history.items()}
    for group in groups:
        if rewards := _rewards(group):
            found[named(group)] = [*found.pop(named(group), []), *rewards][-kept.size :]
    return dict(list(found.items())[-kept.prompts :])


def with_statistics(groups: Sequence[Group], history: History, kept: TrackedRewards) -> list[Group]:
    """The groups of a batch that is in the history; STATISTICS are the prompt's or, of too few rewards, the batch's."""
    everything = [reward for group in groups for reward in _rewards(group)]

    def noted(group: Group) -> Group:
        past = history.get(named(group), ())
        known = past if len(past) >= kept.least else everything or [0.0]
        both = float(np.mean(known)), float(np.std(known))
        return replace(group, samples=tuple(replace(s, extras={**s.extras, STATISTICS: both}) for s in group.samples))

    return [noted(group) for group in groups]


def standardised(reward_G: Array, mean: float, deviation: float) -> Array:
    """``A_i = (r_i - mean) / (std + 1e-6)`` with the mean and deviation of all that is known of a prompt."""
    return (reward_G - mean) / (deviation + STD_OFFSET)


def _rewards(group: Group) -> list[float]:
    return [float(sample.reward or 0.0) for sample in scored_samples(group)]
