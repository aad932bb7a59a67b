"""Odds-ratio preference optimization: fine-tuning and preference in one stage (Hong et al. 2024, arXiv 2403.07691)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.algos.pair_rows import FromPairs, PairValues
from penstock.config.run import require
from penstock.config.spec import spec
from penstock.core.contracts import Denominator, LossOutput, Outputs
from penstock.core.types import Row


@spec
class ORPO(FromPairs):
    """ORPO: likelihood of the chosen completion plus ``weight`` times the log odds ratio; no reference."""

    weight: float = 0.1
    """Weight of the odds ratio beside the likelihood (the paper's λ)."""

    def __post_init__(self) -> None:
        require(self.weight > 0, f"weight={self.weight}; give a positive number such as 0.1, or use SFT")

    def score(self, logp_A: NDArray[Any], row: Row) -> float:
        """The log odds of the mean log-prob."""
        mean = min(float(np.mean(logp_A)), -1e-6)
        return mean - float(np.log(-np.expm1(mean)))

    def loss(self) -> ORPOLoss:
        """The ORPO loss, a mean over the batch's pairs."""
        return ORPOLoss(self.weight)


@dataclass(frozen=True)
class ORPOLoss:
    """``-mean logp of chosen + λ · odds ratio term`` (eq. 6); reads the per-row field ``preferred``."""

    weight: float

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"logp"})

    def __call__(self, outputs: Outputs, fields: Mapping[str, Any], batch: Any, denominator: Denominator) -> LossOutput:
        from penstock.algos import pair_losses, preference

        pairs = denominator.units
        means = PairValues.of(outputs["logp"], fields, batch, mean=True)
        nll = preference.batch_mean(-means.chosen_U, denominator=pairs)
        term = preference.batch_mean(pair_losses.odds_ratio(means.chosen_U, means.rejected_U), denominator=pairs)
        loss = nll + self.weight * term
        metrics = {"loss": loss.detach(), "nll/chosen": nll.detach(), "loss/odds_ratio": term.detach()}
        return loss, means.metrics(1.0, pairs) | metrics
