"""Learning-rate schedules as pure functions of the step."""

from __future__ import annotations

import math

from penstock.config.run import LearnerSpec

FLOOR = 0.1
"""Share of the peak rate that a schedule ``with_min_lr`` ends at."""


def rate_at(spec: LearnerSpec, step: int, total: int) -> float:
    """Learning rate of optimizer step ``step`` (from 0) out of ``total``."""
    if step < spec.warmup:
        return spec.learning_rate * (step + 1) / spec.warmup
    if spec.schedule == "constant":
        return spec.learning_rate
    progress = min(1.0, (step - spec.warmup) / max(1, total - spec.warmup))
    linear, floor = spec.schedule.startswith("linear"), FLOOR if spec.schedule.endswith("min_lr") else 0.0
    shape = 1 - progress if linear else 0.5 * (1 + math.cos(math.pi * progress))
    return spec.learning_rate * (floor + (1 - floor) * shape)
