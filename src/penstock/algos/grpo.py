"""Group relative policy optimization (Shao et al. 2024, arXiv 2402.03300): the siblings of a sample are its baseline."""

from __future__ import annotations

from typing import Literal

from penstock.algos.advantages import Array, group_centred, group_normalised
from penstock.algos.kl import IN_LOSS, KLPenalty
from penstock.algos.policy import FromGroups
from penstock.core.spec import spec


@spec
class GRPO(FromGroups):
    """A sample's advantage is the z-score of its reward within its group.

    The paper: ``scale="std", aggregate="sequence", kl=KLPenalty(place="loss", estimator="k3", coefficient=0.04)``.
    Dr. GRPO (arXiv 2503.20783): ``scale="none", aggregate="constant", constant=<sampling.max_new_tokens>``.
    The token mean and wider upper clip of DAPO (arXiv 2503.14476): ``aggregate="token", clip=(0.2, 0.28), skip_flat=True``.
    """

    scale: Literal["std", "none"] = "std"
    """Divide a group's centred rewards by their standard deviation, or leave them."""
    kl: KLPenalty = IN_LOSS

    def advantages(self, reward_G: Array) -> Array:
        return group_normalised(reward_G) if self.scale == "std" else group_centred(reward_G)
