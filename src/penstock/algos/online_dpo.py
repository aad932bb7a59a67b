"""Online DPO: the policy's own samples, ranked by a reward, become its pairs (Guo et al. 2024, arXiv 2402.04792)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from penstock.algos.dpo import DPO
from penstock.algos.labels import Trajectory, trajectories
from penstock.config.run import require
from penstock.config.spec import AnySpec, spec
from penstock.core.contracts import Coefficients, Columns, Loss
from penstock.core.types import Group, Row, Unit


@spec
class OnlineDPO:
    """The best and the worst sample of each prompt, by reward, are a preference pair; samples that tie teach nothing."""

    feedback: ClassVar[str] = "samples"
    least_samples: ClassVar[int] = 2
    """Valid samples without which there is no pair."""
    bounded: ClassVar[bool] = False
    """Nothing bounds what a pair drawn by older weights can do, so that ``max_lag`` must be 0."""

    preference: AnySpec = DPO()
    """How pairs are learned: any algorithm on pairs by log-probs, such as DPO(objective="ipo") or SimPO()."""

    def __post_init__(self) -> None:
        name = type(self.preference).__name__
        require(getattr(self.preference, "data", "") == "pairs", f"preference={name} does not learn from pairs; use DPO")
        needs = self.preference.needs
        require("score" not in needs, f"preference={name} trains a score head, not a policy; use DPO")
        columns = [name for name in ("weight", "probability") if getattr(self.preference, name, "")]
        require(not columns, f"preference reads a column ({''.join(columns[:1])}), and samples have none; leave it out")
        require("baseline" not in needs, f"preference={name} needs the mean of all rewards (bco, KTO), unknown online; use DPO")

    @property
    def needs(self) -> frozenset[str]:
        """Columns to fill before ``label``: "reference" if the pairs are learned against one."""
        return self.preference.needs

    def initial_coefficients(self) -> Coefficients:
        """No slow variables."""
        return {}

    def has_signal(self, group: Group) -> bool:
        """Whether two valid samples differ in reward."""
        return len({sample.reward for sample in group.samples if sample.valid}) > 1

    def label(self, groups: Sequence[Group], columns: Columns, coefficients: Coefficients) -> list[Unit]:
        """One pair per group whose valid samples differ in reward; the field ``reward`` is that of the row's sample.

        Of equal rewards the earlier sample is taken.
        """
        units: list[Unit] = []
        for group in trajectories(groups, columns, needs=self.needs, least=self.least_samples):
            reward_G = np.array([trajectory.reward for trajectory in group])
            best, worst = int(reward_G.argmax()), int(reward_G.argmin())
            if reward_G[best] > reward_G[worst]:
                units.append((_row(group[best], 1.0), _row(group[worst], 0.0)))
        return units

    def loss(self) -> Loss:
        """The loss of the pairs, a mean over those of the batch."""
        return self.preference.loss()


def _row(trajectory: Trajectory, preferred: float) -> Row:
    fields: dict[str, Any] = {"preferred": preferred, "reward": trajectory.reward}
    fields["old_logp"] = trajectory.logp_A.astype(np.float32)  # for the metrics of drift; the loss does not read it
    if len(trajectory.reference_logp_A):
        fields["reference_logp"] = trajectory.reference_logp_A.astype(np.float32)
    return Row(trajectory.sample.columns, trajectory.sample.action_T, fields)
