"""Fragments: steps that follow on one another in living environments. Bound to their actor, never generated again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.types import BoolArray, FloatArray, Group, IntArray, Prompt, PromptKey, Sample, SampleKey


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


SOURCE = "fragments"
"""What the units of work of a control stage are called; the ordinal counts fragments over all actors."""


@dataclass(frozen=True)
class Collected:
    """A fragment, the returns and lengths of the episodes that ended in it, and whose environments they are."""

    fragment: Fragment
    episodes: Sequence[tuple[float, int]]
    actor: str = ""


def group_of(collected: Collected, ordinal: int) -> Group:
    """A fragment as a group; its steps are time-major."""
    fragment = collected.fragment
    flat = fragment.reward_TN.size
    key = PromptKey(SOURCE, 0, ordinal)
    columns = {
        "observation_T": fragment.observation_TNF.reshape(flat, *fragment.observation_TNF.shape[2:]),
        "decision_T": fragment.decision_TND.reshape(flat, -1),
        "value_T": fragment.value_TN.reshape(flat),
        "start_T": fragment.start_TN.reshape(flat),
    }
    extras = {
        "environments": fragment.reward_TN.shape[1],
        "state_NS": fragment.state_NS,
        "following_K": fragment.following_K,
        "ends": {field.name: getattr(fragment.ends, field.name) for field in fields(Ends)},
        "episodes": np.asarray(collected.episodes, np.float64).reshape(-1, 2),
        "actor": collected.actor,
    }
    sample = Sample(
        SampleKey(key, 0),
        columns,
        action_T=fragment.acted_TN.reshape(flat),
        logp_T=fragment.logp_TN.reshape(flat),
        version_T=fragment.version_TN.reshape(flat),
        finish="length",
        reward_T=fragment.reward_TN.reshape(flat),
        extras=extras,
    )
    return Group(Prompt(key, ""), (sample,))


def collected_of(group: Group) -> Collected:
    """What :func:`group_of` was given. Arrays that came over a socket may be read-only."""
    (sample,) = group.samples
    extras, grid = sample.extras, (-1, int(sample.extras["environments"]))
    assert sample.reward_T is not None
    columns = {name: column.reshape(*grid, *column.shape[1:]) for name, column in sample.columns.items()}
    fragment = Fragment(
        observation_TNF=columns["observation_T"],
        decision_TND=columns["decision_T"],
        logp_TN=sample.logp_T.reshape(grid),
        value_TN=columns["value_T"],
        version_TN=sample.version_T.reshape(grid),
        reward_TN=sample.reward_T.reshape(grid),
        start_TN=columns["start_T"],
        acted_TN=sample.action_T.reshape(grid),
        state_NS=extras["state_NS"],
        ends=Ends(**extras["ends"]),
        following_K=extras["following_K"],
    )
    return Collected(fragment, [(float(total), int(length)) for total, length in extras["episodes"]], extras["actor"])


def side_by_side(fragments: Sequence[Fragment]) -> Fragment:
    """Fragments of the same length as one, whose environments are those of all."""
    first, *others = fragments
    if not others:
        return first
    offsets = np.cumsum([0, *(part.reward_TN.shape[1] for part in fragments[:-1])]).astype(np.int32)
    ends = {field.name: np.concatenate([getattr(part.ends, field.name) for part in fragments]) for field in fields(Ends)}
    counts = [len(part.ends.step_K) for part in fragments]
    ends["environment_K"] = ends["environment_K"] + np.repeat(offsets, counts).astype(np.int32)
    joined = {
        field.name: np.concatenate([getattr(part, field.name) for part in fragments], 1)
        for field in fields(Fragment)
        if field.name.endswith(("_TN", "_TNF", "_TND"))
    }
    return Fragment(
        **joined,
        state_NS=np.concatenate([part.state_NS for part in fragments]),
        ends=Ends(**ends),
        following_K=np.concatenate([part.following_K for part in fragments]),
    )


def not_finite(fragment: Fragment) -> str:
    """What an environment gave that is no finite number, and where; empty where all is well."""
    for name, values_TN in (("reward", fragment.reward_TN), ("observation", fragment.observation_TNF)):
        if values_TN.dtype.kind == "f" and not np.isfinite(values_TN).all():
            step, environment = np.argwhere(~np.isfinite(values_TN))[0][:2].tolist()
            where = f"at step {step} of a fragment"
            return f"environment {environment} gave a {name} that is not finite {where}; nothing of it is learned"
    return ""
