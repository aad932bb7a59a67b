"""Reward models from preference pairs (Bradley & Terry 1952; Christiano et al. 2017; Ouyang et al. 2022, eq. 1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from penstock.algos.completions import Encoder, completed
from penstock.core.contracts import Denominator, LossOutput, Outputs, Scores
from penstock.core.errors import TrainingError
from penstock.core.run import require
from penstock.core.spec import spec
from penstock.core.types import Metrics, Row, Unit


@spec
class BradleyTerry:
    """A scalar score, read at the end token, that ranks the preferred completion above the other."""

    feedback: ClassVar[str] = "data"
    data: ClassVar[str] = "pairs"
    needs: ClassVar[frozenset[str]] = frozenset({"score"})

    margin: float = 0.0
    """By how much the preferred completion should win."""
    centring: float = 0.0
    """Weight of ``(chosen + rejected)²``, which keeps scores around zero; 0.01 is usual."""

    def __post_init__(self) -> None:
        require(self.margin >= 0, f"margin={self.margin} is negative; use 0 for none")
        require(self.centring >= 0, f"centring={self.centring} is negative; use 0 for none")

    def rows(self, example: Mapping[str, Any], tokenizer: Encoder) -> Unit:
        """Two rows, preferred first, from the rendered texts ``prompt``, ``chosen``, ``rejected``; no token is an action.

        Raises:
            DataError: a text is missing.
        """
        unit = []
        for column, preferred in (("chosen", 1.0), ("rejected", 0.0)):
            tokens_T, _ = completed(example, column, tokenizer)
            unit.append(Row(tokens_T, np.zeros(len(tokens_T), bool), {"preferred": preferred}))
        return tuple(unit)

    def loss(self) -> PairLoss:
        """The Bradley-Terry loss, a mean over the batch's pairs."""
        return PairLoss(self.margin, self.centring)

    def assess(self, units: Sequence[Unit], scores: Scores) -> Metrics:
        """Held-out ``pair/accuracy`` (a tie counts one half), ``pair/margin`` and ``pair/nll`` (no margin, no centring).

        Raises:
            TrainingError: the scores do not belong to these units, or there are none.
        """
        preferred_B = np.array([float(row.fields["preferred"]) for unit in units for row in unit])  # type: ignore[arg-type]
        score_B = np.asarray(scores.score, np.float64)
        if not len(units) or len(score_B) != len(preferred_B) or any(len(unit) != 2 for unit in units):
            raise TrainingError(f"{len(score_B)} scores for {len(units)} pairs; score the same units first")
        margin_U = (score_B * (2 * preferred_B - 1)).reshape(-1, 2).sum(1)
        return {
            "pair/accuracy": float((0.5 * (1 + np.sign(margin_U))).mean()),
            "pair/margin": float(margin_U.mean()),
            "pair/nll": float(np.logaddexp(0, -margin_U).mean()),
        }


@dataclass(frozen=True)
class PairLoss:
    """Bradley-Terry loss of the pairs of a batch; reads the per-row field ``preferred``, so rows may stand in any order."""

    margin: float
    centring: float

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"score"})

    def __call__(self, outputs: Outputs, fields: Mapping[str, Any], batch: Any, denominator: Denominator) -> LossOutput:
        from penstock.algos import preference

        pairs = denominator.units
        chosen_U, rejected_U = preference.pairs(outputs.score_B, fields["preferred"], batch.unit_B)
        loss = preference.bradley_terry_loss(
            chosen_U, rejected_U, denominator=pairs, margin=self.margin, centring=self.centring
        )
        chosen_U, rejected_U = chosen_U.detach(), rejected_U.detach()
        return loss, {
            "loss": loss.detach(),
            "pair/accuracy": preference.pair_accuracy(chosen_U, rejected_U, denominator=pairs),
            "pair/margin": (chosen_U - rejected_U).sum() / pairs,
            "score/mean": (chosen_U + rejected_U).sum() / (2 * pairs),
        }
