"""Learning-rate schedules as pure functions of the step."""

from __future__ import annotations

import math

from penstock.config.run import LearnerSpec


def rate_at(spec: LearnerSpec, step: int, total: int) -> float:
    """Learning rate of optimizer step ``step`` (from 0) out of ``total``."""
    if step < spec.warmup:
        return spec.learning_rate * (step + 1) / spec.warmup
    if spec.schedule == "constant":
        return spec.learning_rate
    progress = min(1.0, (step - spec.warmup) / max(1, total - spec.warmup))
    shape = 1 - progress if spec.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * progress))
    return spec.learning_rate * (spec.rate_floor + (1 - spec.rate_floor) * shape)
