"""Fine-tuning of denoisers on the best of their own pictures: what reinforcement has to be better than."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from penstock.algos.denoising import noise_key, picture_row
from penstock.algos.labels import Trajectory
from penstock.algos.rft import RFT
from penstock.config.spec import Count, spec
from penstock.core.contracts import Denominator, LossOutput, Outputs
from penstock.core.types import Unit


@spec
class DiffusionRFT(RFT):
    """Keeps the best pictures of each prompt and learns to denoise them as any that are given (RAFT: Dong et al. 2023, arXiv
    2304.06767). Denoisers of noise and of velocities learn from it alike, and any sampler will do."""

    start: float = 0.9
    """Quantile of the first batch; 1 keeps only the best."""
    draws: Count = 4
    """Times at which each picture is given noise."""

    denoises: ClassVar[bool] = True
    quiet_samples: ClassVar[bool] = True
    loss_reads: ClassVar[frozenset[str]] = frozenset({"prediction"})

    def imitated(self, best: Sequence[Trajectory]) -> Unit:
        """A row for each picture that is kept."""
        keyed = [(t, {"reward": t.reward, "noise_key": noise_key(str(t.sample.key))}) for t in best]
        return tuple(picture_row(t.sample, fields, self.draws) for t, fields in keyed)

    def compute_loss(self, outputs: Outputs, fields: Mapping[str, Any], batch: Any, denominator: Denominator) -> LossOutput:
        """The squared error of what is predicted, a mean over pictures and their times."""
        from penstock.algos import denoising_losses as losses

        loss = losses.squared_distance(outputs["prediction"], outputs["prediction/wanted"]).sum() / denominator.tokens
        return loss, {"loss": loss.detach()}
