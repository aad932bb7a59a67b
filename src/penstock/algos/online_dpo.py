"""Online DPO: the policy's own samples, ranked by a reward, become its pairs (Guo et al. 2024, arXiv 2402.04792)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from penstock.algos.dpo import DPO
from penstock.algos.labels import trajectories
from penstock.algos.pair_rows import FromSamplePairs, sample_pair
from penstock.config.run import require
from penstock.config.spec import AnySpec, spec
from penstock.core.algorithm import FromData
from penstock.core.contracts import Coefficients, Columns, Denominator, LossOutput, Outputs
from penstock.core.types import Group, Unit


@spec
class OnlineDPO(FromSamplePairs):
    """The best and the worst sample of each prompt, by reward, are a preference pair; samples that tie teach nothing."""

    preference: AnySpec = DPO()
    """How pairs are learned: any algorithm on pairs by log-probs, such as DPO(objective="ipo") or SimPO()."""

    def __post_init__(self) -> None:
        name, chosen = type(self.preference).__name__, self.preference
        pairs = isinstance(chosen, FromData) and chosen.data == "pairs"
        require(pairs, f"preference={name} does not learn from pairs; use DPO")
        require(not chosen.heads, f"preference={name} trains a reward model, not a policy; use DPO")
        require(not chosen.has_baseline, f"preference={name} needs the mean of all rewards (bco, KTO), unknown online; use DPO")
        columns = chosen.data_columns
        require(not columns, f"preference reads a column ({''.join(columns[:1])}), and samples have none; leave it out")

    @property
    def needs(self) -> frozenset[str]:
        """The column "reference" if the pairs are learned against one."""
        needs: frozenset[str] = self.preference.needs
        return needs

    def label(self, groups: Sequence[Group], columns: Columns, coefficients: Coefficients) -> list[Unit]:
        """One pair per group whose valid samples differ in reward; the field ``reward`` is that of the row's sample.

        Of equal rewards the earlier sample is taken.
        """
        units: list[Unit] = []
        for group in trajectories(groups, columns, needs=self.needs, least=self.least_samples):
            reward_G = np.array([trajectory.reward for trajectory in group])
            best, worst = int(reward_G.argmax()), int(reward_G.argmin())
            if reward_G[best] > reward_G[worst]:
                units.append(sample_pair(group[best], group[worst]))
        return units

    @property
    def loss_reads(self) -> frozenset[str]:
        reads: frozenset[str] = self.preference.loss_reads
        return reads

    def compute_loss(self, outputs: Outputs, fields: Mapping[str, Any], batch: Any, denominator: Denominator) -> LossOutput:
        """The loss of the pairs, a mean over those of the batch."""
        found: LossOutput = self.preference.compute_loss(outputs, fields, batch, denominator)
        return found
