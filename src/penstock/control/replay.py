"""Replay: transitions of older policies in rings of arrays, sampled alike or in proportion to their priorities, and
the way from fragments through them to optimizer steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.algos.off_policy import DQN, SAC
from penstock.algos.q_learning import n_step_sums
from penstock.control.fragments import Fragment
from penstock.control.replay_policies import SoftActor, ValuesOfOptions
from penstock.core.contracts import Holder, State
from penstock.core.errors import CheckpointError
from penstock.core.types import FloatArray, Metrics, Unit
from penstock.models.control import StepsRow


class SumTree:
    """Priorities as the leaves of a binary tree of sums, so that finding one by its share of the whole takes log steps.

    Every verb takes many leaves at once.
    """

    def __init__(self, leaves: int) -> None:
        self.first = 1 << max(1, (leaves - 1).bit_length())
        self.sums = np.zeros(2 * self.first)

    @property
    def total(self) -> float:
        return float(self.sums[1])

    def set(self, leaf_A: NDArray[Any], priority_A: NDArray[Any]) -> None:
        """Set the priorities of some leaves."""
        node_A = np.asarray(leaf_A, np.int64) + self.first
        self.sums[node_A] = priority_A
        while node_A[0] > 1:
            node_A = np.unique(node_A >> 1)
            self.sums[node_A] = self.sums[2 * node_A] + self.sums[2 * node_A + 1]

    def find(self, share_A: FloatArray) -> NDArray[np.int64]:
        """The leaf in which each number in [0, total) falls, as if priorities lay end to end."""
        node_A, left_A = np.ones(len(share_A), np.int64), np.asarray(share_A, np.float64).copy()
        while node_A[0] < self.first:
            node_A *= 2
            right_A = left_A >= self.sums[node_A]
            left_A -= np.where(right_A, self.sums[node_A], 0.0)
            node_A += right_A
        return node_A - self.first


class Replay:
    """A ring of at most ``capacity`` transitions: columns of one length, the oldest overwritten first."""

    def __init__(self, capacity: int, priority: float = 0.0) -> None:
        self.capacity, self.priority = capacity, priority
        self.columns: dict[str, NDArray[Any]] = {}
        self.size = self.position = self.added = 0
        self.tree = SumTree(capacity) if priority else None
        self.highest = 1.0
        """The largest priority so far: that of a transition that no error is known of."""

    def add(self, columns: Mapping[str, NDArray[Any]]) -> None:
        """Append transitions, at most ``capacity`` at a time."""
        count = len(next(iter(columns.values())))
        if not self.columns:
            self.columns = {
                name: np.zeros((self.capacity, *column.shape[1:]), column.dtype) for name, column in columns.items()
            }
        at_A = (self.position + np.arange(count)) % self.capacity
        for name, column in columns.items():
            self.columns[name][at_A] = column
        if self.tree is not None and count:
            self.tree.set(at_A, np.full(count, self.highest))
        self.position, self.added = (self.position + count) % self.capacity, self.added + count
        self.size = min(self.capacity, self.size + count)

    def sampled(self, count: int, generator: np.random.Generator, correction: float) -> tuple[NDArray[np.int64], FloatArray]:
        """Places of transitions, with replacement, and their weights: ``(size · p)^-correction`` over the largest of them."""
        if self.tree is None:
            return generator.integers(0, self.size, count), np.ones(count, np.float32)
        shares_A = (generator.random(count) + np.arange(count)) / count * self.tree.total  # one from each of equal parts
        at_A = self.tree.find(np.minimum(shares_A, np.nextafter(self.tree.total, 0.0)))
        weight_A = (self.size * self.tree.sums[at_A + self.tree.first] / self.tree.total) ** -correction
        return at_A, (weight_A / weight_A.max()).astype(np.float32)

    def taken(self, at_A: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """The transitions at some places."""
        return {name: column.take(at_A, 0) for name, column in self.columns.items()}

    def judge(self, at_A: NDArray[np.int64], error_A: FloatArray) -> None:
        """Note how wrong the value of each transition was."""
        if self.tree is not None:
            priority_A = (np.abs(error_A).astype(np.float64) + 1e-6) ** self.priority
            self.highest = max(self.highest, float(priority_A.max()))
            self.tree.set(at_A, priority_A)

    def state(self) -> State:
        arrays: dict[str, Any] = {f"replay.{name}": column[: self.size] for name, column in self.columns.items()}
        if self.tree is not None:
            arrays["priority"] = self.tree.sums[self.tree.first : self.tree.first + self.size]
        return State(arrays, {"position": self.position, "added": self.added, "size": self.size, "highest": self.highest})

    def load_state(self, state: State) -> None:
        """Raises CheckpointError where more was kept than there is room for."""
        size = int(state.values["size"])
        if size > self.capacity or (size < self.capacity and int(state.values["position"]) != size % self.capacity):
            raise CheckpointError(
                f"the checkpoint holds {size} transitions of another capacity; algorithm.capacity is {self.capacity}"
            )
        kept = {name.removeprefix("replay."): np.asarray(array) for name, array in state.arrays.items() if name != "priority"}
        self.columns, self.size, self.position, self.added = {}, 0, 0, 0
        if size:
            self.add(kept)
        if self.tree is not None and size:
            self.tree.set(np.arange(size), np.asarray(state.arrays["priority"]))
        self.highest, self.added = float(state.values["highest"]), int(state.values["added"])
        self.position = int(state.values["position"])


def transitions(fragment: Fragment, discount: float, steps: int) -> dict[str, NDArray[Any]]:
    """What a replay buffer keeps of each decision: what was seen, decided and earned in ``steps`` steps, what was seen after
    them, and what a value of that counts for: ``discount^m``, and 0 where the episode terminated."""
    last_TN, ends = fragment.last_TN, fragment.ends
    sum_TN, span_TN = n_step_sums(fragment.reward_TN, last_TN, discount, steps)
    grid: Any = np.indices(last_TN.shape)
    end_TN, index_TN = grid[0] + span_TN - 1, grid[1]
    place_TN = np.full(last_TN.shape, -1)
    place_TN[ends.step_K, ends.environment_K] = np.arange(len(ends.step_K))
    place_TN = place_TN[end_TN, index_TN]
    within_TN = place_TN < 0
    next_TNF = ends.observation_KF[place_TN]
    next_TNF[within_TN] = fragment.observation_TNF[end_TN[within_TN] + 1, index_TN[within_TN]]
    counts_TN = discount**span_TN * (within_TN | ~ends.terminated_K[place_TN])
    acted = fragment.acted_TN
    return {
        "observation": fragment.observation_TNF[acted],
        "decision": fragment.decision_TND[acted],
        "return": sum_TN[acted].astype(np.float32),
        "next": next_TNF[acted],
        "discount": counts_TN[acted].astype(np.float32),
    }


@dataclass
class ReplayLabeller:
    """Keeps fragments and makes minibatches of what is kept, each labelled by the weights as they are then."""

    algorithm: DQN | SAC
    policy: ValuesOfOptions | SoftActor
    replay: Replay
    updates: int
    """Optimizer steps after a fragment."""
    batches: int
    """Fragments of the whole stage."""
    seed: int

    def minibatches(self, fragment: Fragment, version: int) -> Iterator[list[Unit]]:
        """None before there are ``warmup`` transitions. What is sampled is a function of seed, version and step."""
        algorithm, replay = self.algorithm, self.replay
        replay.add(transitions(fragment, algorithm.discount, algorithm.n_steps))
        if replay.added < algorithm.warmup:
            return
        correction = algorithm.correction + (1 - algorithm.correction) * version / max(1, self.batches - 1)
        shape = (2, algorithm.batch, self.policy.noise)
        for update in range(self.updates):
            generator = np.random.Generator(np.random.Philox(np.random.SeedSequence((self.seed, version, update))))
            at_A, weight_A = replay.sampled(algorithm.batch, generator, correction)
            taken, noise = replay.taken(at_A), generator.standard_normal(shape, np.float32)
            target_A, error_A = self.policy.targets(taken, noise)
            replay.judge(at_A, error_A)
            columns = {"observation_T": taken["observation"], "decision_T": taken["decision"]}
            columns["start_T"] = np.zeros(len(at_A), bool)
            fields = {"target": target_A, "weight": weight_A, "noise": noise[1]}
            yield [(StepsRow(columns, np.ones(len(at_A), bool), fields, environments=len(at_A)),)]

    @property
    def holders(self) -> Mapping[str, Holder]:
        """What is kept belongs in a checkpoint."""
        return {"replay": self.replay}

    @property
    def metrics(self) -> Metrics:
        """How much is kept."""
        return {"replay/size": float(self.replay.size)}
