"""REBEL (Gao et al. 2024, arXiv 2404.16767): differences of reward are regressed on differences of log-ratio."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.algos.labels import trajectories
from penstock.algos.pair_rows import FromSamplePairs, PairValues, sample_pair
from penstock.config.spec import Positive, spec
from penstock.core.contracts import Coefficients, Columns, Denominator, LossOutput, Outputs
from penstock.core.types import Group, Unit


@spec
class REBEL(FromSamplePairs):
    """``((h_1 - h_2) / η - (r_1 - r_2))²`` of two samples of a prompt, with ``h = log π / π_old``: no clip, no critic."""

    eta: Positive = 1.0
    """Step size η of the mirror descent that the regression solves: larger moves further for the same rewards."""

    def label(self, groups: Sequence[Group], columns: Columns, coefficients: Coefficients) -> list[Unit]:
        """A group's valid samples in pairs, as they come; an odd one is left out. A tie is a pair too: it should stay one."""
        found = trajectories(groups, columns, needs=self.needs, least=self.least_samples)
        return [sample_pair(*two) for group in found for two in zip(group[::2], group[1::2], strict=False)]

    def compute_loss(self, outputs: Outputs, fields: Mapping[str, Any], batch: Any, denominator: Denominator) -> LossOutput:
        """The squared error, a mean over the batch's pairs.

        Reads ``old_logp`` (per action), ``reward`` and ``preferred`` (per row; here it only tells first from second).
        """
        from penstock.algos import preference

        moved = PairValues.of(outputs["logp"] - fields["old_logp"], fields, batch, mean=False)
        reward_U = preference.pairs(fields["reward"], fields["preferred"], batch.unit_B)
        gap_U = (moved.chosen_U - moved.rejected_U) / self.eta - (reward_U[0] - reward_U[1])
        loss = gap_U.square().sum() / denominator.units
        return loss, {"loss": loss.detach(), "pair/unexplained": gap_U.detach().abs().sum() / denominator.units}
