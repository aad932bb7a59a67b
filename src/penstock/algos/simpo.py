"""Simple preference optimization: pairs without a reference, by mean log-probs (Meng et al. 2024, arXiv 2405.14734)."""

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
class SimPO(FromPairs):
    """SimPO: the reward of a completion is ``beta`` times its mean log-prob a token, and has to win by a margin."""

    beta: float = 2.0
    """Scale of the reward; the paper takes 2 to 10, far more than DPO, because means are small."""
    margin: float = 1.0
    """By how much the chosen reward has to win (γ); the paper takes 0.3 to 1.6 for β = 2 to 2.5."""

    def __post_init__(self) -> None:
        require(self.beta > 0, f"beta={self.beta}; give a positive number such as 2")
        require(self.margin >= 0, f"margin={self.margin} is negative; use 0 for none")

    def score(self, logp_A: NDArray[Any], row: Row) -> float:
        """``beta`` times the mean log-prob."""
        return self.beta * float(np.mean(logp_A))

    def loss(self) -> SimPOLoss:
        """The SimPO loss, a mean over the batch's pairs."""
        return SimPOLoss(self.beta, self.margin)


@dataclass(frozen=True)
class SimPOLoss:
    """``-log σ(β (mean logp of chosen - of rejected) - γ)``; reads the per-row field ``preferred``."""

    beta: float
    margin: float

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"logp"})

    def __call__(self, outputs: Outputs, fields: Mapping[str, Any], batch: Any, denominator: Denominator) -> LossOutput:
        from penstock.algos import pair_losses, preference

        means = PairValues.of(outputs["logp"], fields, batch, mean=True)
        loss_U = pair_losses.simpo(means.chosen_U, means.rejected_U, self.beta, self.margin)
        loss = preference.batch_mean(loss_U, denominator=denominator.units)
        return loss, means.metrics(self.beta, denominator.units) | {"loss": loss.detach()}
