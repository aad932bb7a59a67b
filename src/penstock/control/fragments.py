"""Fragments: steps that follow on one another in living environments. Bound to their actor, never generated again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.types import BoolArray, FloatArray, IntArray


@dataclass(frozen=True)
class Ends:
    """Where episodes ended, and where they were still running as the fragment was over: K places, in order of time.

    An episode that ended keeps its true last observation here; the fragment's next row is already the next episode's.
    """

    step_K: IntArray
    environment_K: IntArray
    terminated_K: BoolArray
    """The task was over, so that nothing follows."""
    truncated_K: BoolArray
    """It was cut at a limit that is no part of the task. Neither: it was still running."""
    observation_KF: FloatArray
    """The true last observation."""
    state_KS: FloatArray
    """What the policy remembered before that observation."""


@dataclass(frozen=True)
class Fragment:
    """T steps of N environments as arrays, without an object a step."""

    observation_TNF: NDArray[Any]
    """float32, or the bytes of images; numbers of an action mask come last."""
    decision_TND: NDArray[Any]
    logp_TN: FloatArray
    """Log-probs under the policy that decided."""
    value_TN: FloatArray
    """Its critic's values."""
    version_TN: IntArray
    """The version of its weights."""
    reward_TN: FloatArray
    start_TN: BoolArray
    """An episode begins with this observation."""
    acted_TN: BoolArray
    """False where the environment only reset itself, whatever was decided: gymnasium's ``NEXT_STEP``. Never trained on."""
    state_NS: FloatArray
    """What the policy remembered before the first step."""
    ends: Ends
    following_K: FloatArray
    """The behaviour critic's values of the true last observations; 0 where an episode terminated."""

    @property
    def steps(self) -> int:
        """Steps that the policy decided."""
        return int(np.count_nonzero(self.acted_TN))

    @property
    def last_TN(self) -> BoolArray:
        """Steps after which the next row goes on with something else."""
        found = np.zeros(self.reward_TN.shape, bool)
        found[-1] = True
        found[self.ends.step_K, self.ends.environment_K] = True
        return found

    def following(self, value_TN: FloatArray, following_K: FloatArray) -> FloatArray:
        """The value of the state after each step within its episode, from those of the rows and of the ends."""
        found = np.empty_like(value_TN)
        found[:-1], found[-1] = value_TN[1:], 0.0
        found[self.ends.step_K, self.ends.environment_K] = np.where(self.ends.terminated_K, 0.0, following_K)
        return found
