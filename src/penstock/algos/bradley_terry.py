"""Reward models from preference pairs (Bradley & Terry 1952; Christiano et al. 2017; Ouyang et al. 2022, eq. 1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.algos.binary_reward import RewardModel
from penstock.algos.pair_rows import pair_metrics, pair_rows
from penstock.config.run import require
from penstock.config.spec import NotNegative, spec
from penstock.core.algorithm import Encoder
from penstock.core.contracts import Denominator, LossOutput, Outputs, Scores
from penstock.core.types import Metrics, Unit


@spec
class BradleyTerry(RewardModel):
    """A scalar score, read at the end token, that ranks the preferred completion above the other."""

    data = "pairs"

    margin: float | str = 0.0
    """By how much the preferred completion should win: a number, or the column that holds one for each pair."""
    probability: str = ""
    """Column with the chance (0 to 1) that the preferred completion is the better one, such as the share of judges who
    said so; empty: it is certain. With a margin too it is the chance that scores differ by more than the margin."""
    centring: NotNegative = 0.0
    """Weight of ``(chosen + rejected)²``, which keeps scores around zero; 0.01 is usual."""

    def __post_init__(self) -> None:
        if not isinstance(self.margin, str):
            require(self.margin >= 0, f"margin={self.margin} is negative; use 0 for none")

    def rows(self, example: Mapping[str, Any], tokenizer: Encoder) -> Unit:
        """Two rows, preferred first, from the rendered texts ``prompt``, ``chosen``, ``rejected``; no token is an action.

        Raises:
            DataError: a text is missing, or the column of the margin or probability holds none.
        """
        margin = self.margin if isinstance(self.margin, str) else ""
        return pair_rows(example, tokenizer, trained=False, margin=margin, probability=self.probability)

    def compute_loss(self, outputs: Outputs, fields: Mapping[str, Any], batch: Any, denominator: Denominator) -> LossOutput:
        """The Bradley-Terry loss, a mean over the batch's pairs.

        Reads the per-row field ``preferred``, so rows may be in any order. Where rows have them, ``margin`` and ``probability``
        (equal in both rows of a pair) are read too.
        """
        from penstock.algos import preference

        def per_pair(name: str, default: Any) -> Any:
            return preference.pairs(fields[name], fields["preferred"], batch.unit_B)[0] if name in fields else default

        pairs = denominator.units
        chosen_U, rejected_U = preference.pairs(outputs["score"], fields["preferred"], batch.unit_B)
        loss = preference.bradley_terry_loss(
            chosen_U,
            rejected_U,
            denominator=pairs,
            margin=per_pair("margin", 0.0 if isinstance(self.margin, str) else self.margin),
            probability=per_pair("probability", 1.0),
            centring=self.centring,
        )
        chosen_U, rejected_U = chosen_U.detach(), rejected_U.detach()
        return loss, {
            "loss": loss.detach(),
            "pair/accuracy": preference.accuracy(chosen_U - rejected_U, denominator=pairs),
            "pair/margin": (chosen_U - rejected_U).sum() / pairs,
            "score/mean": (chosen_U + rejected_U).sum() / (2 * pairs),
        }

    def assess(self, units: Sequence[Unit], scores: Scores) -> Metrics:
        """Held-out ``pair/accuracy`` (a tie counts one half), ``pair/margin`` and ``pair/nll`` (no margin, no centring).

        Raises:
            TrainingError: the scores do not belong to these units, or there are none.
        """
        return pair_metrics(units, scores["score"])
