"""Designs as sequences of choices, what they are worth, and the environment in which a controller makes them in turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from costs import DATAFLOWS, Accelerator, Cost, design_cost
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from workloads import DEPTH, WIDTHS, WORKLOADS, Accuracies, layers_of

ELEMENTS, BANDWIDTHS = (16, 32, 64, 128, 256), (4, 8, 16, 32, 64)
PENALTY = 10.0
"""What a design loses for being above its limits by their own size (NASAIC's rho); accuracies are below 1."""
CHOICES = [len(WIDTHS)] * 2 * DEPTH + [len(DATAFLOWS), len(ELEMENTS), len(BANDWIDTHS)] * 2
"""Options of each choice: widths of the two networks, then dataflow, elements and bandwidth of two accelerators."""
NETWORKS = 2 * DEPTH


@dataclass(frozen=True)
class Worth:
    """Accuracies are None where a design breaks a limit: it is not worth training."""

    cost: Cost
    over: float
    accuracies: tuple[float, float] | None

    @property
    def accuracy(self) -> float:
        return sum(self.accuracies) / 2 if self.accuracies else 0.0

    @property
    def reward(self) -> float:
        return self.accuracy if self.over == 0 else -min(PENALTY * self.over, 1.0)


class Problem:
    """A workload with its limits."""

    def __init__(self, workload: str, accuracies: Accuracies, share: float = 0.15) -> None:
        self.tasks, self.accuracies, self.share = WORKLOADS[workload], accuracies, share
        self.known: dict[tuple[int, ...], Worth] = {}

    def parts(self, choices: Sequence[int]) -> tuple[list[tuple[int, ...]], list[Accelerator]]:
        widths = [tuple(WIDTHS[at] for at in choices[first : first + DEPTH]) for first in (0, DEPTH)]
        hardware = choices[NETWORKS:]
        made = [Accelerator(DATAFLOWS[hardware[at]], ELEMENTS[hardware[at + 1]], BANDWIDTHS[hardware[at + 2]]) for at in (0, 3)]
        return widths, made

    def cost(self, choices: Sequence[int]) -> Cost:
        widths, made = self.parts(choices)
        return design_cost([layers_of(task, one) for task, one in zip(self.tasks, widths, strict=True)], made)

    @cached_property
    def limits(self) -> Cost:
        """Each is met by the given share of random designs, so that all three at once are met by few."""
        random = np.random.default_rng(99)
        costs = [self.cost(random.integers(CHOICES).tolist()) for _ in range(2000)]
        columns = np.array([(cost.latency, cost.energy, cost.area) for cost in costs])
        return Cost(*np.quantile(columns, (0.3, 0.5, 0.3), axis=0).diagonal().tolist())

    def worth(self, choices: Sequence[int]) -> Worth:
        """A design's cost and, where it meets all limits, its accuracies. Costs nothing the second time."""
        key = tuple(int(one) for one in choices)
        if key not in self.known:
            cost, accuracies = self.cost(key), None
            over = cost.over(self.limits)
            if over == 0:
                widths, _ = self.parts(key)
                accuracies = tuple(self.accuracies(task, one) for task, one in zip(self.tasks, widths, strict=True))
            self.known[key] = Worth(cost, over, accuracies)  # type: ignore[arg-type]
        return self.known[key]


class Designing(VectorEnv[Any, Any, Any]):
    """Designs made side by side, a choice a step; the last one gives the reward. Shows the choices made and which is next."""

    def __init__(self, num_envs: int, workload: str, file: str) -> None:
        self.num_envs, self.problem = num_envs, Problem(workload, Accuracies(Path(file)))
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.single_action_space = Discrete(max(CHOICES))
        self.single_observation_space = Box(0, 1, (len(CHOICES) * (1 + max(CHOICES)),), np.float32)
        self.log: list[tuple[tuple[int, ...], Worth]] = []

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.made = np.full((self.num_envs, len(CHOICES)), -1)
        self.at = 0
        return self._shown(), self._infos()

    def step(self, action: Any) -> Any:
        self.made[:, self.at] = action
        self.at += 1
        reward, nothing = np.zeros(self.num_envs, np.float32), np.zeros(self.num_envs, bool)
        if self.at < len(CHOICES):
            return self._shown(), reward, nothing, nothing, self._infos()
        found = [(tuple(choices), self.problem.worth(choices)) for choices in self.made.tolist()]
        self.log += found
        reward = np.array([worth.reward for _, worth in found], np.float32)
        last = np.empty(self.num_envs, object)
        shown = self._shown()
        for index in range(self.num_envs):
            last[index] = shown[index]
        self.reset()
        return self._shown(), reward, ~nothing, nothing, self._infos() | {"final_obs": last}

    def _shown(self) -> Any:
        options = np.arange(max(CHOICES))
        made = (self.made[:, :, None] == options).reshape(self.num_envs, -1)
        place = np.broadcast_to(np.arange(len(CHOICES)) == self.at, (self.num_envs, len(CHOICES)))
        return np.concatenate([place, made], 1).astype(np.float32)

    def _infos(self) -> dict[str, Any]:
        allowed = np.arange(max(CHOICES)) < CHOICES[self.at % len(CHOICES)]
        return {"action_mask": np.broadcast_to(allowed, (self.num_envs, max(CHOICES))).astype(np.int8)}


MADE: list[Designing] = []
"""The environments that this process made: a search reads their designs."""


def designing(num_envs: int, **options: Any) -> Designing:
    """For ``EnvironmentsSpec(id="FILE.py:designing")``."""
    MADE.append(Designing(num_envs, **options))
    return MADE[-1]
