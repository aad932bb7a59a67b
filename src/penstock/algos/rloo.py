"""REINFORCE with a leave-one-out baseline (Ahmadian et al. 2024, arXiv 2402.14740)."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.algos.advantages import Array, leave_one_out
from penstock.algos.labels import Trajectory
from penstock.algos.policy import FromGroups
from penstock.config.spec import spec


@spec
class LeaveOneOut(FromGroups):
    """A sample's advantage is its reward less the mean reward of its siblings, which keeps the gradient unbiased.

    The paper's estimator is ``clip=None, aggregate="constant", constant=1``: the log-prob of a whole answer is one action.
    """

    def advantages(self, reward_G: Array, group: Sequence[Trajectory]) -> Array:
        return leave_one_out(reward_G)
