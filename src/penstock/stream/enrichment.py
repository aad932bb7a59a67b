"""Columns that are written on the samples of a group after its tokens: what travels is the change, not the group again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from penstock.core.errors import StreamError
from penstock.core.types import Group, Sample
from penstock.stream.entry import Entry

TOKENS = "tokens"
"""The column that generators write: the samples themselves."""

Change = Mapping[str, Any]
"""What a step found out about one sample: ``reward_T``, ``error``, and entries of ``extras``."""


@dataclass(frozen=True)
class EnrichmentStep:
    """A column and the columns that must be there before it can be made."""

    name: str
    inputs: tuple[str, ...] = (TOKENS,)


REWARD, REFERENCE = EnrichmentStep("reward"), EnrichmentStep("reference")


class Enrichment:
    """Which groups wait for which column, in the order in which they came."""

    def __init__(self, steps: Sequence[EnrichmentStep]) -> None:
        self.steps = steps
        self._waiting: dict[str, dict[int, Entry]] = {step.name: {} for step in steps}

    def is_complete(self, entry: Entry) -> bool:
        """Whether all columns of a group are there."""
        return entry.group is not None and all(step.name in entry.columns for step in self.steps)

    def offer(self, entry: Entry) -> None:
        """Let a group wait for every column that nobody makes and whose inputs are there."""
        for step in self.steps:
            begun = step.name in entry.columns or step.name in entry.owners
            if not begun and entry.columns.issuperset(step.inputs):
                self._waiting[step.name][entry.ordinal] = entry

    def withdraw(self, ordinal: int) -> None:
        """A group waits no longer."""
        for waiting in self._waiting.values():
            waiting.pop(ordinal, None)

    def waiting(self, step: str) -> dict[int, Entry]:
        """By ordinal, the groups that wait for the column ``step``. Raises StreamError where the stream has no such step."""
        if step not in self._waiting:
            raise StreamError(f'no step "{step}"; the stream has {list(self._waiting)}')
        return self._waiting[step]


def changes(before: Group, after: Group) -> list[Change]:
    """What a step has added to each sample of a group."""
    return [_change(old, new) for old, new in zip(before.samples, after.samples, strict=True)]


def _change(before: Sample, after: Sample) -> Change:
    extras = {name: value for name, value in after.extras.items() if before.extras.get(name) is not value}
    return {"reward_T": after.reward_T, "error": after.error, "extras": extras}


def merged(group: Group, found: Sequence[Change]) -> Group:
    """The group with a step's findings; an error that is there stays, whichever step found it first.

    Raises:
        StreamError: there is not one finding a sample.
    """
    if len(found) != len(group.samples):
        raise StreamError(f"group {group.key} has {len(group.samples)} samples, but a step wrote about {len(found)}")
    samples = []
    for sample, change in zip(group.samples, found, strict=True):
        reward_T = sample.reward_T if change.get("reward_T") is None else np.asarray(change["reward_T"], np.float32)
        extras = {**sample.extras, **change.get("extras", {})}
        samples.append(replace(sample, reward_T=reward_T, error=sample.error or change.get("error"), extras=extras))
    return replace(group, samples=tuple(samples))
