"""What a stream enforces, and what it counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from penstock.core.errors import StreamError
from penstock.core.types import Group
from penstock.stream.enrichment import TOKENS, EnrichmentStep
from penstock.stream.entry import Entry

BatchSelector = Callable[[Sequence[Entry], int], list[int]]
"""From the ready groups, in the order in which they became ready, the indices of so many that make up the next batch."""


def fifo(ready: Sequence[Entry], count: int) -> list[int]:
    """Those that were ready first."""
    return list(range(count))


def balanced(ready: Sequence[Entry], count: int) -> list[int]:
    """A batch whose lengths are spread like those of all ready groups, so that batches cost alike.

    The ready groups are ordered by action tokens and taken at even distances.
    """
    order = np.argsort([entry.versions.tokens for entry in ready], kind="stable")
    return sorted(int(order[int(index)]) for index in np.floor((np.arange(count) + 0.5) * len(ready) / count))


def priority(ready: Sequence[Entry], count: int) -> list[int]:
    """First the groups with the oldest tokens, which are the next to go stale; among these the widest spread of rewards."""

    def key(index: int) -> tuple[float, float, int]:
        rewards = [sample.reward or 0.0 for sample in ready[index].whole.samples if sample.valid]
        return ready[index].versions.oldest, -float(np.std(rewards)) if rewards else 0.0, index

    return sorted(sorted(range(len(ready)), key=key)[:count])


BATCH_SELECTORS: Mapping[str, BatchSelector] = {"fifo": fifo, "balanced": balanced, "priority": priority}


OnStale = Literal["wait", "drop", "mask"]


@dataclass(frozen=True)
class Rules:
    """What the gate enforces.

    Attributes:
        batch: groups a lease holds.
        max_lag: versions that a token may be older than the weights it trains.
        on_stale: ``wait`` takes batches in the order of admission and waits for stragglers; ``drop`` takes what is ready and
            starts a group again that became too old; ``mask`` lets it go on and leaves its too old tokens out of training.
        batch_selector: which of the ready groups make up a batch (``drop`` and ``mask``).
        oversample: groups in flight beyond the slots, so that a batch need not wait for its last ones.
        keep: whether a finished group is worth a place in a batch; None keeps all. One that is not is filtered: its slot opens
            at once, so that the next prompt's group takes its place, and its prompt is not generated again.
        dynamic_sampling: batches' worth of groups that may be filtered for each batch that may be in flight.
        max_uses: batches that a group may be in, as long as it is young enough.
        enrichment: columns that a group needs before it is ready, besides its tokens.
    """

    batch: int
    max_lag: int = 0
    on_stale: OnStale = "wait"
    batch_selector: str = "fifo"
    oversample: int = 0
    keep: Callable[[Group], bool] | None = None
    dynamic_sampling: int = 0
    max_uses: int = 1
    enrichment: tuple[EnrichmentStep, ...] = ()

    @property
    def fresh(self) -> int:
        """Groups of a batch that have not been trained on before, once there are enough others."""
        return -(-self.batch // self.max_uses)

    @property
    def slots(self) -> int:
        return (self.max_lag + 1) * self.fresh + self.oversample

    def __post_init__(self) -> None:
        if self.on_stale == "wait" and (self.oversample or self.batch_selector != "fifo"):
            raise StreamError('batch_selector and oversample choose among ready groups; set on_stale="drop" or "mask"')
        if not 1 <= self.max_uses <= self.max_lag + 1:
            raise StreamError(
                f"max_uses={self.max_uses}: a group is young enough for {self.max_lag + 1} batches with this max_lag"
            )
        if self.batch_selector not in BATCH_SELECTORS:
            raise StreamError(f'no batch selector "{self.batch_selector}"; there are {", ".join(BATCH_SELECTORS)}')
        there = {TOKENS}
        for step in self.enrichment:
            if missing := sorted(set(step.inputs) - there):
                raise StreamError(f'step "{step.name}" needs {", ".join(missing)}; name the steps that write it before it')
            there.add(step.name)


@dataclass
class StreamStats:
    """Counts since the run began; seconds are summed over those who waited."""

    admitted: int = 0
    delivered: int = 0
    trained: int = 0
    filtered: int = 0
    """Groups without signal whose place was given to another prompt."""
    returned: int = 0
    """Groups that went back because their worker was gone."""
    refused: int = 0
    """Deliveries of workers that did not own the group (any more)."""
    dropped: int = 0
    """Groups started again because they became too old."""
    tokens_dropped: int = 0
    """Action tokens of finished groups that became too old."""
    tokens_masked: int = 0
    """Action tokens left out of training for their age."""
    waited_for_groups: float = 0.0
    waited_for_slots: float = 0.0
    largest_lag: int = 0
