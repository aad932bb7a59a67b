"""Running moments of observations and of discounted returns, kept in the policy that they belong to."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from penstock.algos.moments import merged_moments, running_returns
from penstock.control.fragments import Fragment
from penstock.core.contracts import State
from penstock.core.types import FloatArray
from penstock.models.control import ControlPolicy


@dataclass
class Normalizing:
    """Moves the moments of a policy by what a fragment shows.

    Observations: after the fragment was trained on, so that log-probs are compared under the moments under which the policy
    acted. Rewards: before, and they are divided by the deviation of discounted returns and cut to ±limit, never shifted.
    """

    policy: ControlPolicy
    discount: float
    rewards: bool
    limit: float = 10.0
    carried: dict[str, FloatArray] = field(default_factory=dict)
    """The discounted return of each environment so far, by actor."""

    def scaled(self, fragment: Fragment, actor: str = "") -> Fragment:
        """The fragment with its rewards scaled, where they are to be; it follows on the one before of its ``actor``."""
        if not self.rewards:
            return fragment
        carried_N = self.carried.get(actor, np.zeros(fragment.reward_TN.shape[1]))
        return_TN = running_returns(fragment.reward_TN, fragment.start_TN, carried_N, self.discount)
        self.carried[actor], moments = return_TN[-1], self.policy.network.rewards
        moments.become(*merged_moments(*moments.values(), return_TN[fragment.acted_TN][:, None]))
        reward_TN = (fragment.reward_TN * float(moments.scale)).clip(-self.limit, self.limit)
        return replace(fragment, reward_TN=reward_TN)

    def observe(self, fragment: Fragment) -> None:
        """Take the observations that were acted on."""
        if (normal := self.policy.network.normal) is not None:
            shown_AF: Any = fragment.observation_TNF[fragment.acted_TN]
            normal.become(*merged_moments(*normal.values(), shown_AF[:, : len(normal.mean)]))

    def state(self) -> State:
        return State({}, {"carried": {actor: carried_N.tolist() for actor, carried_N in self.carried.items()}})

    def load_state(self, state: State) -> None:
        self.carried = {actor: np.asarray(carried) for actor, carried in state.values["carried"].items()}
