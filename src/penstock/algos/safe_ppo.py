"""Safe RLHF: as much reward as a bound on the cost allows (Dai et al. 2023, arXiv 2310.12773).

Two models score a sample: how helpful it is (reward) and how harmful (cost). A Lagrange multiplier λ prices the cost, rises
while the mean cost is above its limit and falls while it is below.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from penstock.algos.advantages import Array
from penstock.algos.labels import Trajectory
from penstock.algos.ppo import PPO
from penstock.config.run import require
from penstock.config.spec import NotNegative, spec
from penstock.core.contracts import Coefficients, Columns
from penstock.core.errors import TrainingError
from penstock.core.types import Group, Metrics, Row


@spec
class SafePPO(PPO):
    """PPO on ``(reward - λ cost) / (1 + λ)``, where ``λ`` moves once a batch towards ``mean cost = limit``.

    Generalised advantages are linear in rewards and values, so those of the mixture are the paper's ``(A_r - λ A_c) /
    (1 + λ)``. One critic predicts the mixture, where the paper has one for each part; it follows λ as λ moves.
    """

    cost: str = "cost"
    """Name of the reward that measures harm, above 0 for harmful; give it the weight 0 in the stage's mixture."""
    cost_limit: float = 0.0
    """Mean cost that is allowed (the paper's ``-d``)."""
    multiplier: float = 1.0
    """λ at the start."""
    multiplier_rate: NotNegative = 0.1
    """How fast λ moves: each batch, ``log λ`` rises by this times ``λ · (mean cost - limit)``."""
    multiplier_most: float = 10.0
    """λ never exceeds this."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(bool(self.cost), "cost is empty; name the reward that measures harm")
        require(
            0 < self.multiplier <= self.multiplier_most,
            f"multiplier={self.multiplier} must lie above 0 (from which it could not move) and at most multiplier_most",
        )

    def initial_coefficients(self) -> Coefficients:
        """Where the slow variables of a run start."""
        return {**super().initial_coefficients(), "multiplier": self.multiplier}

    def adapt(self, coefficients: Coefficients, metrics: Metrics) -> Coefficients:
        """The next batch's slow variables; reads ``cost/mean``, and leaves λ alone where nothing was labelled.

        ``log λ += rate · λ · (mean cost - limit)`` (the paper's appendix B.3).
        """
        following = super().adapt(coefficients, metrics)
        if "cost/mean" not in metrics:
            return following
        change = self.multiplier_rate * coefficients["multiplier"] * (metrics["cost/mean"] - self.cost_limit)
        # Exponents are bounded so that one absurd cost cannot overflow; λ itself is bounded right after.
        moved = coefficients["multiplier"] * math.exp(min(max(change, -20.0), 20.0))
        return {**following, "multiplier": min(moved, self.multiplier_most)}

    def kept(self, groups: Sequence[Group], columns: Columns, coefficients: Coefficients) -> list[list[Trajectory]]:
        """The valid samples of each group, with the mixture of reward and cost as their reward.

        Raises:
            TrainingError: a sample has no cost.
        """
        price = coefficients["multiplier"]
        return [
            [self._priced(trajectory, price) for trajectory in group] for group in super().kept(groups, columns, coefficients)
        ]

    def _priced(self, trajectory: Trajectory, price: float) -> Trajectory:
        cost_A = np.zeros(len(trajectory))
        cost_A[-1] = self._cost(trajectory)
        return replace(trajectory, reward_A=mixed(trajectory.reward_A, cost_A, price))

    def _cost(self, trajectory: Trajectory) -> float:
        cost = trajectory.sample.extras.get("rewards", {}).get(self.cost)
        if cost is None:
            raise TrainingError(f'{trajectory.sample.key}: no reward called "{self.cost}" scored it; add one of weight 0')
        return float(cost)

    def _row(self, trajectory: Trajectory, advantage_A: Array, return_A: Array, coefficients: Coefficients) -> Row:
        row = super()._row(trajectory, advantage_A, return_A, coefficients)
        return replace(row, fields={**row.fields, "cost": self._cost(trajectory), "multiplier": coefficients["multiplier"]})


def mixed(reward: Array, cost: Array, multiplier: float) -> Array:
    """``(reward - λ cost) / (1 + λ)`` (arXiv 2310.12773, eq. 9 with both parts under one bound of scale)."""
    return (reward - multiplier * cost) / (1 + multiplier)
