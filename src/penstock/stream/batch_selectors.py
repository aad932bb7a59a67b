"""Which of the groups that are ready make up the next batch: pure functions.

Each takes the ready groups in the order in which they became ready and gives the indices of ``count`` of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from penstock.stream.entry import Entry

BatchSelector = Callable[[Sequence[Entry], int], list[int]]


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
