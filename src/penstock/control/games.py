"""Games of several agents under PettingZoo's parallel API, as one vector environment: a row for each agent that learns.

Agents are bound to who decides for them by pattern (``environments.agents``): the policy that learns, a saved one, or chance. A
game goes on until its last agent is done, and its rows begin anew together: an agent that is done earlier is idle until then.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, VectorEnv

from penstock.control.spaces import Decisions, Observations, stacked
from penstock.core.errors import SpecError
from penstock.core.types import FloatArray
from penstock.models.control import load_policy

LEARNER, RANDOM = "learner", "random"


class Frozen:
    """A saved policy that decides for the agents of a pattern, each decision the most likely one."""

    def __init__(self, folder: Path, name: str, observation: Any, action: Any) -> None:
        self.policy = load_policy(folder)
        self.decisions = Decisions(name, action, self.policy.network.shape.kind == "soft")
        self.seen = Observations(name, observation, sum(self.decisions.choices), False)
        self.vectors = length(observation) > 0
        shape, width = self.policy.network.shape, self.decisions.continuous
        if length(observation) > shape.observation:
            raise SpecError(
                f"{folder}: that policy reads {shape.observation} numbers, and {name} sees {length(observation)}; name another"
            )
        if self.policy.remembers or (shape.choices, shape.continuous) != (self.decisions.choices, width):
            raise SpecError(f"{folder}: that policy has a memory, or decides something else than {name}; name another")

    @torch.inference_mode()
    def actions(self, observations: Sequence[Any]) -> Any:
        """One action for each observation."""
        shape = self.policy.network.shape
        own_NF = padded(observations, shape.observation) if self.vectors else self.seen.rows(stacked(observations))
        unseen_NC = np.zeros((len(own_NF), shape.context), own_NF.dtype)  # what its critic alone would read
        rows_NF = np.concatenate((own_NF[:, : shape.observation], unseen_NC, own_NF[:, shape.observation :]), 1)
        _, decision, _ = self.policy.step(torch.from_numpy(rows_NF), self.policy.first_state(len(rows_NF)), None)
        return self.decisions.rows(self.decisions.actions(decision.numpy()))


def length(space: Any) -> int:
    """Numbers of a vector; 0 for anything else."""
    return int(space.shape[0]) if isinstance(space, Box) and len(space.shape) == 1 else 0


def padded(vectors: Sequence[Any], width: int) -> FloatArray:
    """Vectors as rows of this width, the shorter ones with zeros after them."""
    rows_NF = np.zeros((len(vectors), width), np.float32)
    for row_F, vector in zip(rows_NF, vectors, strict=True):
        row_F[: len(vector)] = vector
    return rows_NF


class Games(VectorEnv[Any, Any, Any]):
    """Copies of a game. Row ``g * L + l`` is the l-th learning agent of game g.

    Its mode is ``NEXT_STEP``: the step after a game's last one begins it anew. ``infos["idle"]`` marks rows of agents that are
    done while their game goes on. Agents that see vectors of different lengths see zeros after the shorter ones.
    """

    def __init__(self, make: Callable[[], Any], games: int, agents: Mapping[str, str], base: Path | None, name: str) -> None:
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.games = [make() for _ in range(games)]
        first = self.games[0]
        if not hasattr(first, "possible_agents"):
            raise SpecError(f"{name} made {type(first).__name__}, no parallel game of PettingZoo; give its parallel_env")
        bound = {agent: _bound(agent, agents or {".*": LEARNER}, name) for agent in first.possible_agents}
        self.learners = [agent for agent, who in bound.items() if who == LEARNER]
        if not self.learners:
            raise SpecError(
                f"environments.agents={dict(agents)}: no agent of {name} learns; give one of {sorted(bound)} to learner"
            )
        self.others = {agent: who for agent, who in bound.items() if who != LEARNER}
        self.frozen: dict[str, Frozen] = {}
        for agent, who in self.others.items():
            if who not in self.frozen and who != RANDOM:
                folder = (base or Path()) / Path(who).expanduser()
                self.frozen[who] = Frozen(folder, agent, first.observation_space(agent), first.action_space(agent))
        lengths = {agent: length(first.observation_space(agent)) for agent in self.learners}
        self.width = max(lengths.values()) if 0 < min(lengths.values()) < max(lengths.values()) else 0
        """Of vectors that differ in length."""
        self.single_observation_space = (
            Box(-np.inf, np.inf, (self.width,), np.float32) if self.width else self._alike(first.observation_space, name)
        )
        self.single_action_space = self._alike(first.action_space, name)
        self.decisions = Decisions(name, self.single_action_space)
        self.num_envs = games * len(self.learners)
        self.shown: list[dict[str, Any]] = [{} for _ in self.games]

    def _alike(self, space: Callable[[str], Any], name: str) -> Any:
        """The space that all learning agents have."""
        found = {agent: space(agent) for agent in self.learners}
        one = found[self.learners[0]]
        if different := [agent for agent, other in found.items() if other != one]:
            raise SpecError(
                f"{name}: {different[0]} has {found[different[0]]}, {self.learners[0]} has {one}, and one policy learns; let "
                "environments.agents give one of them to a saved policy or to random"
            )
        return one

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        """Begin all games; ``seed`` is a list with at least one for each."""
        for index, game in enumerate(self.games):
            self.shown[index] = dict(game.reset(seed=seed[index])[0])
            for number, agent in enumerate(self.others):
                game.action_space(agent).seed(seed[index] + number)
        self.over = [False] * len(self.games)
        return self._observations(), {}

    def step(self, action: Any) -> Any:
        """One step of every game, but for those that were over, which begin anew."""
        reward, done = np.zeros(self.num_envs, np.float32), np.zeros((2, self.num_envs), bool)
        idle = np.zeros(self.num_envs, bool)
        chosen, each = self._others(), self.decisions.rows(action)
        for index, game in enumerate(self.games):
            first = index * len(self.learners)
            if self.over[index]:
                self.shown[index], self.over[index] = dict(game.reset()[0]), False
                continue
            live = list(game.agents)
            own = {agent: each[first + place] for place, agent in enumerate(self.learners) if agent in live}
            seen, rewards, terminated, truncated, _ = game.step(own | {a: chosen[index, a] for a in self.others if a in live})
            self.shown[index] |= seen
            self.over[index] = not game.agents
            for place, agent in enumerate(self.learners, first):
                if agent in live:
                    reward[place] = rewards[agent]
                    done[:, place] = terminated[agent], truncated[agent]
                else:
                    idle[place] = True
        return self._observations(), reward, done[0], done[1], {"idle": idle}

    def _others(self) -> dict[tuple[int, str], Any]:
        """Actions of the agents that do not learn, by game and agent; each saved policy is asked once."""
        places = [(index, agent) for index, game in enumerate(self.games) for agent in self.others if agent in game.agents]
        found = {
            (at, agent): self.games[at].action_space(agent).sample() for at, agent in places if self.others[agent] == RANDOM
        }
        for who, policy in self.frozen.items():
            mine = [(index, agent) for index, agent in places if self.others[agent] == who]
            if mine:
                found |= dict(zip(mine, policy.actions([self.shown[at][agent] for at, agent in mine]), strict=True))
        return found

    def _observations(self) -> Any:
        seen = [shown[agent] for shown in self.shown for agent in self.learners]
        return padded(seen, self.width) if self.width else stacked(seen)

    def close(self, **given: Any) -> None:
        for game in self.games:
            game.close()


def _bound(agent: str, agents: Mapping[str, str], name: str) -> str:
    """Who decides for an agent: the first pattern that its whole name matches."""
    for pattern, who in agents.items():
        if re.fullmatch(pattern, agent):
            return who
    raise SpecError(f"environments.agents={dict(agents)} says nothing of {agent} of {name}; add a pattern, or .* at the end")
