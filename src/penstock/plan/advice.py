"""Settings that are known not to learn: what ``penstock explain`` warns of before a run, each with where it was seen."""

from __future__ import annotations

from typing import Any

from penstock.config.run import Online
from penstock.models.presets import Shape

SMALL = 50e6
"""Parameters up to which the rates of docs/learning.md hold: they were measured on models of 0.5 to 3 million."""

HIGHEST = {"small": 1e-4, "large": 1e-5, "adapters": 1e-4}
"""Learning rates above which own samples were not learned from reliably: for small models on tasks of docs/learning.md
(3e-4 without a KL fell on one of them); for large ones ten times what TRL and verl start from (1e-6), for adapters ten
times that again."""


def advice(stage: Any, sized: Shape | None) -> list[str]:
    """One line for each setting of a stage that is known not to learn, with what to set instead; most have none.

    Args:
        stage: a stage that trains.
        sized: the shape of its model, None where only a hub knows it.
    """
    return online_advice(stage, sized) if isinstance(stage, Online) else []


def online_advice(stage: Online, sized: Shape | None) -> list[str]:
    """What is known of learning from own samples."""
    learner, found = stage.learner, []
    kind = "adapters" if learner.lora is not None else "small" if sized and sized.parameters <= SMALL else "large"
    highest = HIGHEST[kind]
    steps = stage.steps * stage.epochs * stage.minibatches
    if learner.learning_rate > highest:
        found.append(
            f"learning_rate={learner.learning_rate:g} is high for own samples: at 3e-4 small models did not rise or fell on "
            f"tasks that nobody tuned for (docs/learning.md); use {highest:g} or less"
        )
    if learner.learning_rate >= highest and learner.schedule == "constant":
        found.append(
            f"schedule=constant at {learner.learning_rate:g} ends wherever the last steps lead (16% and 83% for two seeds of "
            "counting); use linear"
        )
    if learner.learning_rate >= highest and learner.warmup == 0 and steps >= 20:
        found.append("warmup=0: the first steps of Adam have its full length in every direction; use 5 to 10")
    return found
