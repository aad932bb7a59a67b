"""The evaluate loop: samples of held-out prompts under one version of the weights."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np

from penstock.core.errors import RewardError
from penstock.core.types import Group, Metrics, Prompt
from penstock.loops.rollout import Rollout


async def evaluate(roll: Rollout, prompts: Sequence[Prompt]) -> tuple[Metrics, list[Group]]:
    """Generate and score held-out prompts; gives ``evaluation/…`` metrics and the groups.

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
    named: dict[str, list[float]] = {}
    for sample in scored:
        for name, value in sample.extras.get("rewards", {}).items():
            if value is not None:
                named.setdefault(name, []).append(float(value))
    return metrics | {f"evaluation/{name}": float(np.mean(values)) for name, values in named.items()}, groups
