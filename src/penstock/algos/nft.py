"""DiffusionNFT (Zheng et al. 2025, arXiv 2509.16117): policy optimization on the forward process, without log-probs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from penstock.algos.advantages import batch_normalised
from penstock.algos.denoising import noise_key, picture_row
from penstock.algos.distillation import Divergence
from penstock.algos.labels import Trajectory, trajectories
from penstock.algos.policy import totals
from penstock.config.run import require
from penstock.config.spec import Count, InnerShare, NotNegative, Positive, spec
from penstock.core.algorithm import FromSamples, rewards_differ
from penstock.core.contracts import Coefficients, Columns, Denominator, LossOutput, Outputs
from penstock.core.types import Group, Row, Unit


@spec
class DiffusionNFT(FromSamples):
    """Draws the velocity of a flow towards that of good pictures and away from that of bad ones (Zheng et al. 2025, arXiv
    2509.16117), for denoisers that predict velocities.

    Only the picture counts, not how it came about: any sampler will do, also ``Sampling(temperature=0)``. Pictures come
    from a slow copy of what is trained, the paper's v_old; it is what is published, evaluated and saved. After update ``n`` it
    keeps the share ``min(rise · n, most)`` of itself.
    """

    beta: Positive = 1.0
    """How much of the trained velocity is in the implicit ones; smaller is bolder."""
    clip: Positive = 5.0
    """Advantage (in deviations of the batch's rewards) from which on a picture is certainly good, or bad."""
    draws: Count = 4
    """Times at which each picture is given noise."""
    pull: NotNegative = 0.0
    """Weight of the squared distance to the reference's velocity; 1e-4 in the paper's code."""
    rise: NotNegative = 0.001
    """What the kept share of the slow copy gains with each of its moves."""
    most: InnerShare = 0.5
    """The largest share of itself that the slow copy keeps."""
    every: Count = 1
    """Optimizer steps between two moves of the slow copy; the stage's ``minibatches · epochs`` is the paper's."""

    coupled: ClassVar[bool] = False
    denoises: ClassVar[bool] = True
    least_samples: ClassVar[int] = 2
    bounded: ClassVar[bool] = True
    """There is no ratio: older pictures say of the slow copy, which is old itself, what they said."""
    quiet_samples: ClassVar[bool] = True
    loss_reads: ClassVar[frozenset[str]] = frozenset({"prediction"})

    def __post_init__(self) -> None:
        require(self.beta <= 1, f"beta={self.beta} is above 1, where the implicit velocities overshoot; use 0.1 to 1")

    @property
    def heads(self) -> Mapping[str, Mapping[str, Any]]:
        """The slow copy."""
        return {"slow": {"rise": self.rise, "most": self.most, "every": self.every}}

    @property
    def teacher(self) -> Divergence | None:
        """The reference, if there is a pull to it."""
        return Divergence() if self.pull else None

    def has_signal(self, group: Group) -> bool:
        """Whether two valid samples differ in reward."""
        return rewards_differ(group)

    def label(self, groups: Sequence[Group], columns: Columns, coefficients: Coefficients) -> list[Unit]:
        """One unit per group, a row per picture; the field ``optimality`` is r = ½ + clip(A, ±c) / 2c of an advantage that is
        centred in the group and divided by the batch's deviation."""
        kept = trajectories(groups, columns, least=self.least_samples)
        rewards = totals(kept, [[t.reward_A for t in group] for group in kept])
        pairs = zip(kept, batch_normalised(rewards), strict=True)
        return [tuple(self._row(t, float(a)) for t, a in zip(group, advantage_G, strict=True)) for group, advantage_G in pairs]

    def _row(self, trajectory: Trajectory, advantage: float) -> Row:
        optimality = 0.5 + float(np.clip(advantage, -self.clip, self.clip)) / (2 * self.clip)
        fields = {"reward": trajectory.reward, "advantage": advantage, "optimality": optimality}
        return picture_row(trajectory.sample, fields | {"noise_key": noise_key(str(trajectory.sample.key))}, self.draws)

    def compute_loss(self, outputs: Outputs, fields: Mapping[str, Any], batch: Any, denominator: Denominator) -> LossOutput:
        """``clip`` times the contrast of the implicit velocities, and the pull, as means over pictures and their times."""
        from penstock.algos import denoising_losses as losses

        velocity_AD, old_AD = outputs["prediction"], outputs["prediction/old"]
        optimality_A = fields["optimality"][batch.row_A]
        wanted_AD, time_A = outputs["prediction/wanted"], outputs["prediction/time"]
        contrast_A = losses.contrasted(velocity_AD, old_AD, wanted_AD, time_A, optimality_A, self.beta)
        loss = self.clip * contrast_A.sum() / denominator.tokens
        moved_A = losses.squared_distance(velocity_AD.detach(), old_AD)
        metrics = {
            "policy/loss": loss.detach(),
            "policy/moved": moved_A.sum() / denominator.tokens,
            "policy/optimality": optimality_A.sum() / denominator.tokens,
        }
        if self.pull:
            distance = losses.squared_distance(velocity_AD, outputs["prediction/reference"]).sum() / denominator.tokens
            metrics["policy/pulled"] = distance.detach()
            loss = loss + self.pull * distance
        return loss, metrics | {"loss": loss.detach()}
