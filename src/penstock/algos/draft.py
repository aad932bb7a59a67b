"""Reward backpropagation: the gradient of a differentiable reward flows through the last transitions into the denoiser."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from penstock.algos.denoising import STATES
from penstock.algos.labels import Trajectory, trajectories
from penstock.config.run import require
from penstock.config.spec import Count, spec
from penstock.core.algorithm import FromSamples
from penstock.core.contracts import Coefficients, Columns, Denominator, LossOutput, Outputs
from penstock.core.errors import TrainingError
from penstock.core.types import Group, Row, Unit


@spec
class DRaFT(FromSamples):
    """Raises a differentiable reward of pictures by its own gradient, cut ``last`` transitions before the end (DRaFT-K: Clark
    et al. 2023, arXiv 2309.17400; AlignProp: arXiv 2310.03739).

    These transitions are made again without noise, from the state that the generator had reached; with
    ``Sampling(temperature=0)`` they are those that it made. Rewards of the stage are reported, and are not what is raised.
    """

    judge: str = ""
    """``MODULE:FUNCTION`` or ``FILE.py:FUNCTION``: from pictures, a tensor ``[B, C, H, W]`` (values from about -1 to 1), and
    the list of their prompts to one number each, with gradient."""
    last: Count = 1
    """K: transitions that the gradient flows through, each as much memory as one pass."""

    coupled: ClassVar[bool] = False
    denoises: ClassVar[bool] = True
    quiet_samples: ClassVar[bool] = True
    bounded: ClassVar[bool] = True
    loss_reads: ClassVar[frozenset[str]] = frozenset({"judged"})

    def __post_init__(self) -> None:
        require(":" in self.judge, f'judge="{self.judge}"; name a differentiable reward, such as FILE.py:FUNCTION')

    def label(self, groups: Sequence[Group], columns: Columns, coefficients: Coefficients) -> list[Unit]:
        """One unit per group, a row per picture, whose actions are the last transitions."""
        return [tuple(self._row(t) for t in group) for group in trajectories(groups, columns)]

    def _row(self, trajectory: Trajectory) -> Row:
        """Raises TrainingError for a sample of fewer transitions, or of another policy."""
        states = len(trajectory.sample.columns.get(STATES, (0,)))
        if states <= self.last:
            raise TrainingError(f"{trajectory.sample.key}: last={self.last} of {states - 1} transitions; raise denoising.steps")
        return Row(trajectory.sample.columns, np.arange(states) >= states - self.last, {"reward": trajectory.reward})

    def compute_loss(self, outputs: Outputs, fields: Mapping[str, Any], batch: Any, denominator: Denominator) -> LossOutput:
        """Minus the mean of what the judge says."""
        loss = -outputs["judged"].sum() / denominator.rows
        return loss, {"loss": loss.detach(), "policy/judged": -loss.detach()}
