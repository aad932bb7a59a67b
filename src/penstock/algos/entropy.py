"""The entropy bonus: a fixed weight, or one that is steered until the policy is as uncertain as wanted."""

from __future__ import annotations

import numpy as np

from penstock.config.spec import NotNegative, Positive, spec
from penstock.core.contracts import Coefficients
from penstock.core.errors import TrainingError
from penstock.core.types import Metrics


def steered(coefficient: float, measured: float, *, target: float, step: float) -> float:
    """One step up while the entropy is below its target, one down while above; never below 0 (Skywork-OR1, arXiv 2505.22312).

    Args:
        coefficient: the coefficient so far.
        measured: entropy of the batch, nats per token.
        target: wanted entropy, nats per token.
        step: how far the coefficient moves in one batch.

    Raises:
        TrainingError: a measurement that is not finite.
    """
    if not np.isfinite(measured):
        raise TrainingError(f"the measured entropy is {measured}; the policy gave log-probs that are not finite")
    return float(max(0.0, coefficient + step * np.sign(target - measured)))


@spec
class EntropyBonus:
    """A bonus for the policy's entropy, added to what is raised; off while coefficient and target are 0."""

    coefficient: NotNegative = 0.0
    """Weight of the mean entropy per token; where it starts, if it is steered."""
    target: NotNegative = 0.0
    """Entropy in nats per token that the coefficient is steered to; 0 keeps the coefficient fixed."""
    step: Positive = 0.005
    """How far a steered coefficient moves in one batch."""

    @property
    def on(self) -> bool:
        return self.coefficient > 0 or self.target > 0

    def current(self, coefficients: Coefficients) -> float:
        """The coefficient in force."""
        return coefficients["entropy"] if self.target else self.coefficient

    def adapt(self, coefficients: Coefficients, metrics: Metrics) -> Coefficients:
        """The coefficients of the next batch, from ``entropy/sampled`` of ``label_metrics`` (the mean of ``-logp`` of samples,
        an unbiased estimate of the entropy)."""
        if not self.target or "entropy/sampled" not in metrics:
            return coefficients
        moved = steered(self.current(coefficients), metrics["entropy/sampled"], target=self.target, step=self.step)
        return {**coefficients, "entropy": moved}
