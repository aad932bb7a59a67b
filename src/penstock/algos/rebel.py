"""REBEL (Gao et al. 2024, arXiv 2404.16767): differences of reward are regressed on differences of log-ratio."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from penstock.algos.labels import trajectories
from penstock.algos.pair_rows import PairValues
from penstock.config.run import require
from penstock.config.spec import spec
from penstock.core.algorithm import FromSamples, rewards_differ
from penstock.core.contracts import Coefficients, Columns, Denominator, LossOutput, Outputs
from penstock.core.types import Group, Row, Unit


@spec
class REBEL(FromSamples):
    """``((h_1 - h_2) / η - (r_1 - r_2))²`` of two samples of a prompt, with ``h = log π / π_old``: no clip, no critic."""

    eta: float = 1.0
    """Step size η of the mirror descent that the regression solves: larger moves further for the same rewards."""

    def __post_init__(self) -> None:
        require(self.eta > 0, f"eta={self.eta} must be above 0; 1 is usual")

    @property
    def least_samples(self) -> int:
        return 2

    def has_signal(self, group: Group) -> bool:
        """Whether two valid samples differ in reward."""
        return rewards_differ(group)

    def label(self, groups: Sequence[Group], columns: Columns, coefficients: Coefficients) -> list[Unit]:
        """A group's valid samples in pairs, as they come; an odd one is left out. A tie is a pair too: it should stay one."""
        units: list[Unit] = []
        for group in trajectories(groups, columns, needs=self.needs, least=self.least_samples):
            for first, second in zip(group[::2], group[1::2], strict=False):
                units.append(
                    tuple(
                        Row(
                            one.sample.columns,
                            one.sample.action_T,
                            {"preferred": side, "reward": one.reward, "old_logp": one.logp_A.astype(np.float32)},
                        )
                        for one, side in ((first, 1.0), (second, 0.0))
                    )
                )
        return units

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
