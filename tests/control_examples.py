"""Environments whose every number is known: step t shows t, and rewards it."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv

LONG = 4
"""Steps of an episode."""


class Counting(gymnasium.Env[Any, Any]):
    """Shows [steps so far, the seed's number]; step t gives t; over after LONG steps, terminated or truncated."""

    def __init__(self, truncates: bool = False) -> None:
        self.truncates = truncates
        self.observation_space = Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = Discrete(2, start=5)

    def shown(self) -> Any:
        return np.array([self.steps, self.drawn], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps, self.drawn = 0, float(self.np_random.integers(1_000_000))
        return self.shown(), {}

    def step(self, action: Any) -> Any:
        assert action in (5, 6)
        self.steps += 1
        over = self.steps >= LONG
        return self.shown(), float(self.steps), over and not self.truncates, over and self.truncates, {}


def counting(**options: Any) -> Counting:
    return Counting(**options)


class CountingVector(VectorEnv[Any, Any, Any]):
    """The same as one array, in the autoreset mode that is asked for; environment n's first episode is n steps shorter."""

    def __init__(self, num_envs: int, mode: str, truncates: bool = False) -> None:
        self.num_envs, self.truncates, self.mode = num_envs, truncates, AutoresetMode(mode)
        self.metadata = {"autoreset_mode": self.mode}
        self.single_observation_space = Box(-np.inf, np.inf, (1,), np.float32)
        self.single_action_space = Discrete(2)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        if options and "reset_mask" in options:
            self.steps[options["reset_mask"]] = 0
        else:
            self.steps, self.done = np.arange(self.num_envs), np.zeros(self.num_envs, bool)
        return self.steps[:, None].astype(np.float32), {}

    def step(self, action: Any) -> Any:
        resets = self.done if self.mode is AutoresetMode.NEXT_STEP else np.zeros(self.num_envs, bool)
        self.steps = np.where(resets, 0, self.steps + 1)
        reward = np.where(resets, 0.0, self.steps)
        self.done, infos = self.steps >= LONG, {}
        shown = self.steps[:, None].astype(np.float32)
        if self.mode is AutoresetMode.SAME_STEP and self.done.any():
            final = np.full(self.num_envs, None, object)
            for index in np.flatnonzero(self.done):
                final[index] = shown[index].copy()
            infos["final_obs"] = final
            self.steps = np.where(self.done, 0, self.steps)
            shown = self.steps[:, None].astype(np.float32)
        nothing = np.zeros(self.num_envs, bool)
        return shown, reward, *((nothing, self.done) if self.truncates else (self.done, nothing)), infos


def counting_vector(num_envs: int, mode: str, truncates: bool = False) -> CountingVector:
    return CountingVector(num_envs, mode, truncates)


def no_vector(num_envs: int) -> int:
    return num_envs


class Masked(gymnasium.Env[Any, Any]):
    """Shows the step; step t forbids option t % 3, by the info or by an entry of the observation."""

    def __init__(self, mode: str, nothing: bool = False) -> None:
        self.mode, self.nothing, self.action_space = mode, nothing, Discrete(3)
        inner = Box(-np.inf, np.inf, (1,), np.float32)
        self.observation_space: Any = inner
        if mode == "entry":
            self.observation_space = Dict({"observation": inner, "action_mask": Box(0, 1, (3,), np.int8)})

    def shown(self) -> Any:
        mask = (np.arange(3) != self.steps % 3).astype(np.int8) * (not self.nothing)
        seen = np.array([self.steps], np.float32)
        return ({"observation": seen, "action_mask": mask}, {}) if self.mode == "entry" else (seen, {"action_mask": mask})

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.steps = 0
        return self.shown()

    def step(self, action: Any) -> Any:
        assert action != self.steps % 3
        self.steps += 1
        seen, info = self.shown()
        return seen, 1.0, False, self.steps >= 5, info


def masked(**options: Any) -> Masked:
    return Masked(**options)


CHASED: list[tuple[str, int]] = []
"""(agent, action) of every step of :class:`Chase`."""


class Chase:
    """A parallel game of two agents over LONG steps: shows [step, agent], rewards 1; agent 1 may be done ``early``, and see
    ``longer`` vectors, which end in 7."""

    possible_agents = ("agent_0", "agent_1")

    def __init__(self, early: int = LONG, differs: bool = False, longer: int = 0) -> None:
        self.early, self.differs, self.longer = early, differs, longer
        self.spaces = {agent: Discrete(2 + differs * number) for number, agent in enumerate(self.possible_agents)}

    def observation_space(self, agent: str) -> Any:
        return Box(-np.inf, np.inf, (2 + self.longer * int(agent[-1]),), np.float32)

    def action_space(self, agent: str) -> Any:
        return self.spaces[agent]

    def shown(self) -> Any:
        numbers = {agent: int(agent[-1]) for agent in self.agents}
        return {agent: np.array([self.steps, at] + self.longer * at * [7], np.float32) for agent, at in numbers.items()}

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.steps, self.agents = 0, list(self.possible_agents)
        return self.shown(), {}

    def step(self, actions: dict[str, Any]) -> Any:
        assert set(actions) == set(self.agents)
        CHASED.extend((agent, int(action)) for agent, action in actions.items())
        self.steps += 1
        seen, ends = self.shown(), {"agent_0": LONG, "agent_1": self.early}
        over = {agent: self.steps >= ends[agent] for agent in self.agents}
        cut, reward = dict.fromkeys(self.agents, False), dict.fromkeys(self.agents, 1.0)
        self.agents = [agent for agent in self.agents if not over[agent]]
        return seen, reward, over, cut, {}

    def close(self) -> None:
        return None


def chase(**options: Any) -> Chase:
    return Chase(**options)


class Bright(gymnasium.Env[Any, Any]):
    """Shows a bright or a dark image of 8 × 8; saying which is worth 1, or with ``smooth`` decisions being close to -1 or 1. An
    episode has LONG steps. With ``turns`` a bright one counts only where a number next to it is 1."""

    observation_space: Any = Box(0, 255, (8, 8, 3), np.uint8)
    action_space: Any = Discrete(2)

    def __init__(self, turns: bool = False, smooth: bool = False) -> None:
        self.turns, self.smooth = turns, smooth
        if turns:
            self.observation_space = Dict({"eye": self.observation_space, "turn": Box(0, 1, (1,))})
        if smooth:
            self.action_space = Box(-1, 1, (1,))

    def shown(self) -> Any:
        bright, turn = self.np_random.integers(2, size=2)
        self.bright = int(bright and turn) if self.turns else int(bright)
        eye = self.np_random.integers(0, 100, (8, 8, 3)).astype(np.uint8) + np.uint8(150 * bright)
        return {"eye": eye, "turn": np.array([turn], np.float32)} if self.turns else eye

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self.shown(), {}

    def step(self, action: Any) -> Any:
        right = 1 - abs(float(action[0]) / 2 + 0.5 - self.bright) if self.smooth else float(action == self.bright)
        self.steps += 1
        return self.shown(), right, False, self.steps >= LONG, {}


def bright(**options: Any) -> Bright:
    return Bright(**options)


class Coin(gymnasium.Env[Any, Any]):
    """One step: option 0 is worth 0 or 1 by chance, option 1 is worth 0.3."""

    observation_space = Box(0, 1, (1,))
    action_space = Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.ones(1, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.ones(1, np.float32), 0.3 if action else float(self.np_random.integers(2)), True, False, {}


def coin() -> Coin:
    return Coin()
