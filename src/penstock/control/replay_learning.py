"""From fragments to transitions in a replay buffer, and from it to optimizer steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.algos.off_policy import DQN, SAC
from penstock.algos.q_learning import n_step_sums
from penstock.control.fragments import Fragment
from penstock.control.replay import Replay
from penstock.control.replay_policies import SoftActor, ValuesOfOptions
from penstock.core.contracts import Holder
from penstock.core.types import Metrics, Unit
from penstock.models.control import StepsRow


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
