"""REINFORCE and REINFORCE++: the return of each action, with no critic and no need of siblings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from penstock.algos.advantages import Array, group_centred, leave_one_out, returns_to_go, whiten
from penstock.algos.labels import Trajectory
from penstock.algos.objectives import AnyObjective, PolicyGradient
from penstock.algos.policy import WithoutCritic, totals
from penstock.config.run import require
from penstock.config.spec import Share, spec


@spec
class REINFORCE(WithoutCritic):
    """The policy gradient (Williams 1992): an action's advantage is its discounted return, less a baseline.

    With stale samples choose ``objective=ClippedRatio()`` and a ``clip``, or give a ``importance_weights``.
    """

    per_token: ClassVar[bool] = True
    by_group: ClassVar[bool] = False

    discount: Share = 1.0
    """Weight of the next step's return; rewards per token count from where they are."""
    baseline: Literal["none", "batch"] = "none"
    """``batch``: the mean return of the other samples of the batch, which leaves the gradient unbiased."""
    clip: tuple[float, float] | None = None
    objective: AnyObjective = PolicyGradient()

    def estimate(self, kept: Sequence[Sequence[Trajectory]], rewards: Sequence[Sequence[Array]]) -> list[list[Any]]:
        """Returns to go, ``[group][sample]``, less the mean of the other samples' whole returns.

        Raises:
            TrainingError: ``baseline="batch"`` and a single valid sample in the batch.
        """
        returns = [[returns_to_go(reward_A, self.discount) for reward_A in group] for group in rewards]
        if self.baseline == "none" or not returns:
            return returns
        whole = np.array([return_A[0] for group in returns for return_A in group])
        others = iter(whole - leave_one_out(whole))
        return [[return_A - next(others) for return_A in group] for group in returns]


@spec
class ReinforcePlusPlus(WithoutCritic):
    """REINFORCE++ (Hu et al. 2025, arXiv 2501.03262): PPO's clip on returns that are whitened over the whole batch.

    The paper charges each token its KL to the reference: ``kl=KLPenalty(place="reward", coefficient=0.01)``. Its variant for
    groups (``baseline="group"``) takes the group's mean off the reward first and puts the penalty in the loss:
    ``kl=KLPenalty(place="loss", estimator="k2", coefficient=0.01)``.
    """

    per_token: ClassVar[bool] = True

    baseline: Literal["none", "group"] = "none"
    """``group``: a sample's reward less the mean of its group, the same for all its tokens."""
    discount: Share = 1.0
    """Weight of the next step's return; only without a baseline."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.baseline == "none" or self.discount == 1,
            'baseline="group" gives all tokens of a sample one reward; set discount=1',
        )

    @property
    def by_group(self) -> bool:
        return self.baseline == "group"

    @property
    def least_samples(self) -> int:
        return 2 if self.baseline == "group" else 1

    def estimate(self, kept: Sequence[Sequence[Trajectory]], rewards: Sequence[Sequence[Array]]) -> list[list[Any]]:
        """Whitened returns to go (or centred rewards), ``[group][sample]``, each token of the batch counting once.

        Raises:
            TrainingError: a single action token in the batch.
        """
        if not rewards:
            return []
        if self.baseline == "group":
            centred = [group_centred(reward_G) for reward_G in totals(kept, rewards)]
            raw = [np.full(len(r), a) for c, group in zip(centred, rewards, strict=True) for a, r in zip(c, group, strict=True)]
        else:
            raw = [returns_to_go(reward_A, self.discount) for group in rewards for reward_A in group]
        white = iter(whiten(raw))
        return [[next(white) for _ in group] for group in rewards]
