"""Groups of a known age, without tokens that matter."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.core.types import Group, Prompt, PromptKey, Sample, SampleKey
from penstock.stream.gate import Gate
from penstock.stream.rules import Lease, Ticket


def sample(key: PromptKey, place: int, versions: Sequence[int]) -> Sample:
    """An unscored sample: one prompt token, then an action by each of ``versions``."""
    count = len(versions)
    action_T = np.array([False, *[True] * count])
    version_T = np.array([-1, *versions], np.int32)
    return Sample(
        SampleKey(key, place),
        {"tokens_T": np.arange(20, 21 + count, dtype=np.int32)},
        action_T,
        np.zeros(count + 1, np.float32),
        version_T,
        "stop",
    )


def drawn(ordinal: int, *samples: Sequence[int]) -> Group:
    """An unscored group; of each sample, the versions that drew its actions."""
    key = PromptKey("test", 0, ordinal)
    return Group(Prompt(key, ""), tuple(sample(key, place, versions) for place, versions in enumerate(samples)))


def scored(group: Group, *rewards: float) -> Group:
    return Group(group.prompt, tuple(one.scored(reward) for one, reward in zip(group.samples, rewards, strict=True)))


def group(ordinal: int, version: int = 0) -> Group:
    """A scored group of one sample, whose one action was drawn by ``version``."""
    return scored(drawn(ordinal, [version]), 1.0)


def deliver(gate: Gate, count: int, version: int = 0, maker: str = "g") -> list[Ticket]:
    """Admit and deliver so many groups."""
    tickets = gate.admit(maker, count)
    assert [gate.put(ticket, group(ticket.ordinal, version)) for ticket in tickets] == [True] * count
    return tickets


def finish(gate: Gate, lease: Lease | None) -> Lease:
    """Train on a lease, publish, and open its slots."""
    assert lease is not None
    gate.trained(lease)
    gate.release(lease)
    return lease


def train(gate: Gate, version: int) -> Lease:
    """Lease the next batch and finish it."""
    return finish(gate, gate.lease(version))
