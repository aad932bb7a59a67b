"""Columns that stages write on the samples of a group: what travels is the change, not the group again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from penstock.core.errors import StreamError
from penstock.core.types import Group, Sample, Version

TOKENS = "tokens"
"""The column that generators write: the samples themselves."""

Change = Mapping[str, Any]
"""What a stage found out about one sample: ``reward_T``, ``error``, and entries of ``extras``."""


@dataclass(frozen=True)
class Stage:
    """A column and the columns that must be there before it can be made."""

    name: str
    inputs: tuple[str, ...] = (TOKENS,)


REWARD, REFERENCE = Stage("reward"), Stage("reference")


def changes(before: Group, after: Group) -> list[Change]:
    """What a stage has added to each sample of a group."""
    return [_change(old, new) for old, new in zip(before.samples, after.samples, strict=True)]


def _change(before: Sample, after: Sample) -> Change:
    extras = {name: value for name, value in after.extras.items() if before.extras.get(name) is not value}
    return {"reward_T": after.reward_T, "error": after.error, "extras": extras}


def merged(group: Group, found: Sequence[Change]) -> Group:
    """The group with a stage's findings; an error that is there stays, whoever found it first.

    Raises:
        StreamError: there is not one finding a sample.
    """
    if len(found) != len(group.samples):
        raise StreamError(f"group {group.key} has {len(group.samples)} samples, but a stage wrote about {len(found)}")
    samples = []
    for sample, change in zip(group.samples, found, strict=True):
        reward_T = sample.reward_T if change.get("reward_T") is None else np.asarray(change["reward_T"], np.float32)
        extras = {**sample.extras, **change.get("extras", {})}
        samples.append(replace(sample, reward_T=reward_T, error=sample.error or change.get("error"), extras=extras))
    return replace(group, samples=tuple(samples))


def masked(group: Group, oldest: Version) -> Group:
    """The group without actions older than ``oldest``: their tokens stay as context and are not trained on."""
    return replace(group, samples=tuple(_masked(sample, oldest) for sample in group.samples))


def _masked(sample: Sample, oldest: Version) -> Sample:
    stale_T = sample.action_T & (sample.version_T < oldest)
    return replace(sample, action_T=sample.action_T & ~stale_T) if stale_T.any() else sample


def actions(group: Group) -> int:
    """Action tokens of all samples."""
    return sum(int(np.count_nonzero(sample.action_T)) for sample in group.samples)


def without_signal(group: Group) -> str:
    """What a group without signal looks like, in the words of an error."""
    errors = [sample.error for sample in group.samples if sample.error]
    rewards = [sample.reward for sample in group.samples if sample.valid and sample.reward is not None]
    if len(set(rewards)) == 1:
        return f"all rewards were {rewards[0]:g}"
    return f"{len(errors)} of {len(group.samples)} samples failed: {errors[0]}" if errors else "nothing could be learned"
