"""Contrastive preference optimization: DPO without a reference, plus likelihood (Xu et al. 2024, arXiv 2401.08417)."""

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
class CPO(FromPairs):
    """CPO: ``-log σ(β (log π(chosen) - log π(rejected)))`` plus the likelihood of the chosen completion."""

    beta: float = 0.1
    """Scale of the difference of summed log-probs."""
    nll_weight: float = 1.0
    """Weight of the likelihood term: the chosen completion's mean log-prob a token."""

    def __post_init__(self) -> None:
        require(self.beta > 0, f"beta={self.beta}; give a positive number such as 0.1")
        require(self.nll_weight >= 0, f"nll_weight={self.nll_weight} is negative; use 0 for none")

    def score(self, logp_A: NDArray[Any], row: Row) -> float:
        """``beta`` times the summed log-prob."""
        return self.beta * float(np.sum(logp_A))

    def loss(self) -> CPOLoss:
        """The CPO loss, a mean over the batch's pairs."""
        return CPOLoss(self.beta, self.nll_weight)


@dataclass(frozen=True)
class CPOLoss:
    """Preference and likelihood; reads the per-row field ``preferred``.

    The likelihood is a mean over a completion's tokens, as in the authors' program; the paper writes its sum.
    """

    beta: float
    nll_weight: float

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"logp"})

    def __call__(self, outputs: Outputs, fields: Mapping[str, Any], batch: Any, denominator: Denominator) -> LossOutput:
        from penstock.algos import pair_losses, preference

        pairs = denominator.units
        sums = PairValues.of(outputs["logp"], fields, batch, mean=False)
        means = PairValues.of(outputs["logp"], fields, batch, mean=True)
        term = preference.batch_mean(pair_losses.sigmoid(sums.chosen_U, sums.rejected_U, self.beta), denominator=pairs)
        nll = preference.batch_mean(-means.chosen_U, denominator=pairs)
        loss = term + self.nll_weight * nll
        return loss, sums.metrics(self.beta, pairs) | {"loss": loss.detach(), "nll/chosen": nll.detach()}
