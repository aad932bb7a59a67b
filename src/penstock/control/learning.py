"""From fragments to optimizer steps: advantages by the house's estimators, and rows for the house's losses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock.algos.advantages import Array, whiten
from penstock.algos.fragment_advantages import generalised_advantages, vtrace
from penstock.algos.ppo import PPO
from penstock.control.fragments import Fragment
from penstock.core.contracts import Holder, Learner
from penstock.core.types import FloatArray, IntArray, Metrics, Unit
from penstock.models.control import ControlPolicy, StepsRow

SCORED = frozenset({"logp", "value"})


@dataclass(frozen=True)
class Passes:
    """How a fragment is used: ``minibatches`` optimizer steps in each of ``epochs`` passes."""

    epochs: int
    minibatches: int
    seed: int

    def parts(self, count: int, version: int) -> Iterator[IntArray]:
        """Positions 0 … count-1 in an order that is a pure function of seed, version and epoch, cut into minibatches."""
        for epoch in range(self.epochs):
            order = np.random.Generator(np.random.Philox(np.random.SeedSequence((self.seed, version, epoch))))
            yield from np.array_split(order.permutation(count).astype(np.int32), self.minibatches)


@dataclass
class Labeller:
    """Makes labelled minibatches of fragments, with advantages of PPO's ``estimator``."""

    algorithm: PPO
    policy: ControlPolicy
    learner: Learner
    passes: Passes
    budget: int = 65536
    """Steps of a micro-batch at most; a sequence of one environment stays whole."""

    holders: ClassVar[Mapping[str, Holder]] = {}
    metrics: ClassVar[Metrics] = {}

    def minibatches(self, fragment: Fragment, version: int) -> Iterator[list[Unit]]:
        """Steps in any order where each stands for itself; else whole sequences of some environments.

        Generalised advantages are those of the policy that acted, computed once. V-trace corrects for how far the policy has
        moved since, so its targets are computed before each optimizer step, by the weights as they are then.
        """
        count = fragment.reward_TN.shape[1]
        corrected = self.algorithm.estimator == "vtrace"
        fields: dict[str, float | FloatArray] = self._constants()
        if not corrected:
            fields |= self._generalised(fragment)
        row = row_of(fragment, self.policy.remembers, fields)
        if not (corrected or self.policy.remembers):
            acted = np.flatnonzero(row.action_T).astype(np.int32)
            for part in self.passes.parts(len(acted), version):
                yield [(row.taken(acted[piece]),) for piece in self._pieces(part, 1)]
            return
        grid_TN = np.arange(fragment.reward_TN.size, dtype=np.int32).reshape(-1, count)
        for part in self.passes.parts(count, version):
            pieces = [(row.taken(grid_TN[:, piece].ravel(), piece), piece) for piece in self._pieces(part, len(grid_TN))]
            yield [(self._corrected(fragment, taken, piece) if corrected else taken,) for taken, piece in pieces]

    def _pieces(self, part: IntArray, steps: int) -> list[IntArray]:
        """A minibatch as micro-batches under the learner's budget, where an entry has so many steps."""
        return np.array_split(part, -(-len(part) * steps // self.budget))

    def _constants(self) -> dict[str, float | FloatArray]:
        """Fields that are one number for all steps."""
        return {"entropy_coefficient": self.algorithm.entropy.coefficient} if self.algorithm.entropy.on else {}

    def _generalised(self, fragment: Fragment) -> dict[str, float | FloatArray]:
        algorithm, acted = self.algorithm, fragment.acted_TN
        following_TN = fragment.following(fragment.value_TN, fragment.following_K)
        advantage_TN, return_TN = generalised_advantages(
            fragment.reward_TN, fragment.value_TN, following_TN, fragment.last_TN, algorithm.discount, algorithm.lam
        )
        advantage_A = advantage_TN[acted]
        if algorithm.whiten:
            (advantage_A,) = whiten([advantage_A])
        return _fields(advantage_A, return_TN[acted], fragment.logp_TN[acted], fragment.value_TN[acted])

    def _corrected(self, fragment: Fragment, row: StepsRow, environments: IntArray) -> StepsRow:
        """The row with V-trace's advantages and targets under the current weights."""
        found = self.learner.score([(row,)], SCORED)
        acted_TN = row.action_T.reshape(-1, row.environments)
        value_TN, gap_TN = np.zeros(acted_TN.shape, np.float32), np.zeros(acted_TN.shape, np.float32)
        value_TN[acted_TN] = found["value"][0]
        gap_TN[acted_TN] = found["logp"][0] - fragment.logp_TN[:, environments][acted_TN]
        ends, place_N = fragment.ends, np.full(fragment.reward_TN.shape[1], -1)
        place_N[environments] = np.arange(len(environments))
        mine_K = place_N[ends.environment_K] >= 0
        some = _ends_of(fragment, mine_K, place_N)
        current_K = self.policy.values(some.ends.observation_KF, some.ends.state_KS)
        following_TN = some.following(value_TN, current_K)
        advantage_TN, target_TN = vtrace(
            fragment.reward_TN[:, environments],
            value_TN,
            following_TN,
            fragment.last_TN[:, environments],
            gap_TN,
            self.algorithm.discount,
            self.algorithm.lam,
            self.algorithm.vtrace_bounds,
        )
        labels = _fields(
            advantage_TN[acted_TN], target_TN[acted_TN], fragment.logp_TN[:, environments][acted_TN], value_TN[acted_TN]
        )
        return replace(row, fields={**row.fields, **labels})


def _ends_of(fragment: Fragment, mine_K: NDArray[np.bool_], place_N: IntArray) -> Fragment:
    """The fragment with the ends of some environments alone, counted among these."""
    ends = fragment.ends
    kept = {name: value[mine_K] for name, value in vars(ends).items()}
    kept["environment_K"] = place_N[kept["environment_K"]]
    return replace(fragment, ends=replace(ends, **kept))


def _fields(advantage_A: Array, return_A: Array, logp_A: FloatArray, value_A: FloatArray) -> dict[str, float | FloatArray]:
    """What PPO's loss reads of every action."""
    return {
        "advantage": advantage_A.astype(np.float32),
        "return": return_A.astype(np.float32),
        "old_logp": logp_A,
        "old_value": value_A,
        "weight": np.ones(len(logp_A), np.float32),
    }


def row_of(fragment: Fragment, remembers: bool, fields: dict[str, float | FloatArray]) -> StepsRow:
    """A fragment as one row, time-major, with fields over its actions."""
    flat = fragment.reward_TN.size
    columns = {
        "observation_T": fragment.observation_TNF.reshape(flat, -1),
        "decision_T": fragment.decision_TND.reshape(flat, -1),
        "start_T": fragment.start_TN.reshape(flat),
    }
    state_NS = fragment.state_NS if remembers else None
    environments = fragment.reward_TN.shape[1]
    return StepsRow(columns, fragment.acted_TN.reshape(flat), fields, environments=environments, state_NS=state_NS)
