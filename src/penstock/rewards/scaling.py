"""Scaling and clipping of rewards before they are labelled. Pure functions; what is remembered travels in ``Moments``.

A reward is divided and never shifted, so its sign keeps its meaning. Batches are scaled in the order in which they are
trained on, so a resumed run scales as the uninterrupted one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from penstock.algos.moments import merged_moments
from penstock.config.run import RewardScaling
from penstock.core.algorithm import scored_samples
from penstock.core.types import FloatArray, Group


@dataclass(frozen=True)
class Moments:
    """Count, mean and sum of squared deviations of all numbers seen (Chan et al. 1979)."""

    count: float = 0.0
    mean: float = 0.0
    squares: float = 0.0

    def seen(self, values: Sequence[float]) -> Moments:
        """The moments after more numbers."""
        return Moments(*map(float, merged_moments(self.count, self.mean, self.squares, values)))

    @property
    def deviation(self) -> float:
        """The sample standard deviation; 0 for fewer than two numbers."""
        return math.sqrt(self.squares / (self.count - 1)) if self.count > 1 else 0.0


def scaled(groups: Sequence[Group], spec: RewardScaling, moments: Moments) -> tuple[list[Group], Moments]:
    """The groups with scaled and clipped rewards, and the moments for the next batch.

    ``running`` divides by the deviation of all rewards so far, this batch's included; ``reference`` by that of the first
    batch (of the first ones, while all their rewards are equal), or by a given number; ``group`` by that of each group. A
    reward per token is divided by the deviation of the samples' sums. A deviation of 0 divides nothing. Clipping comes last
    and acts on each token's reward. Samples without a valid reward shift no moment and stay as they are; neither does a
    greedy baseline, which is scaled like its siblings.
    """
    totals = [sample.reward or 0.0 for group in groups for sample in scored_samples(group)]
    if spec.by == "running" or (spec.by == "reference" and not moments.deviation):
        moments = moments.seen(totals)
    one = spec.deviation or moments.deviation
    by_group = {"none": lambda group: 0.0, "group": _deviation}.get(spec.by, lambda group: one)
    return [_changed(group, by_group(group), spec.clip) for group in groups], moments


def _deviation(group: Group) -> float:
    return Moments().seen([sample.reward or 0.0 for sample in scored_samples(group)]).deviation


def _changed(group: Group, deviation: float, clip: float) -> Group:
    def change(reward_T: FloatArray) -> FloatArray:
        reward_T = reward_T / np.float32(deviation or 1.0)
        return reward_T.clip(-clip, clip) if clip else reward_T

    samples = [
        sample if sample.reward_T is None else replace(sample, reward_T=change(sample.reward_T)) for sample in group.samples
    ]
    return replace(group, samples=tuple(samples))
