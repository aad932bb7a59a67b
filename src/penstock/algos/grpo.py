"""Group relative policy optimization (Shao et al. 2024, arXiv 2402.03300): the siblings of a sample are its baseline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from penstock.algos.advantages import Array, group_centred, group_normalised, process_normalised
from penstock.algos.kl import IN_LOSS, KLPenalty
from penstock.algos.labels import Trajectory, action_rewards
from penstock.algos.policy import FromGroups
from penstock.config.run import require
from penstock.config.spec import spec
from penstock.core.algorithm import scored_samples
from penstock.core.types import Group


@spec
class GRPO(FromGroups):
    """A sample's advantage is the z-score of its reward within its group.

    The paper: ``scale="std", aggregate="sequence", kl=KLPenalty(place="loss", estimator="k3", coefficient=0.04)``.
    Dr. GRPO (arXiv 2503.20783): ``scale="none", aggregate="constant", constant=<sampling.max_new_tokens>``.
    Further relatives (DAPO, GSPO, CISPO, GMPO…) are functions of ``compositions.py``.
    """

    scale: Literal["std", "none"] = "std"
    """Divide a group's centred rewards by their standard deviation, or leave them."""
    supervision: Literal["outcome", "process"] = "outcome"
    """One advantage per sample from the sum of its rewards, or one per token from the rewards of the steps that follow (4.1.3
    of the paper; a step's reward lies on its last token and is not 0)."""
    kl: KLPenalty = IN_LOSS

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.supervision == "process":
            require(self.scale == "std", 'supervision="process" normalises step rewards; set scale="std"')
            require(self.kl.place == "loss", 'supervision="process" takes the KL penalty in the loss; set kl.place="loss"')
            require(
                not self.objective.one_advantage, 'supervision="process" gives one advantage per token; use another objective'
            )

    def advantages(self, reward_G: Array, group: Sequence[Trajectory]) -> Array:
        return group_normalised(reward_G) if self.scale == "std" else group_centred(reward_G)

    def estimate(self, kept: Sequence[Sequence[Trajectory]], rewards: Sequence[Sequence[Array]]) -> list[list[Any]]:
        if self.supervision == "process":
            return [list(process_normalised(group)) for group in rewards]
        return super().estimate(kept, rewards)

    def has_signal(self, group: Group) -> bool:
        """Whether rewards of samples differ, or under process supervision those of steps."""
        if self.supervision == "outcome":
            return super().has_signal(group)
        rewards = [action_rewards(sample) for sample in scored_samples(group)]
        return len(rewards) >= self.least_samples and any(map(np.any, process_normalised(rewards)))
