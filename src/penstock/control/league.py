"""Several learners in one run: agents bound to teams by pattern, frozen versions of each, and who plays against which."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.config.spec import Count, Positive, require, spec
from penstock.control.stage import Control
from penstock.core.contracts import State
from penstock.core.errors import SpecError
from penstock.core.types import Metrics, Version


@spec
class Opponents:
    """Which versions a team plays against (fictitious self-play; the league of Vinyals et al. 2019, Nature 575)."""

    query: Literal["latest", "uniform", "prioritised"] = "latest"
    """``latest``: all as they are now; ``uniform``: past versions alike; ``prioritised``: p ∝ (1 - w)^power, w the win rate."""
    share: float = 0.5
    """Episodes against past versions; in the others all teams play as they are, and all learn."""
    power: Positive = 2.0
    every: Count = 10
    """Batches between two versions that are kept."""
    keep: Count = 8
    """Versions kept at most, spread over the whole run: the one that leaves the smallest gap goes."""

    def __post_init__(self) -> None:
        require(0 <= self.share <= 1, f"opponents.share={self.share} is no share; set 0 to 1")
        require(self.keep >= 2, "opponents.keep=1 would keep the first version alone; set 2 or more")


@spec
class League(Control):
    """Teams that learn in the same games, each with its own policy, optimizer and checkpoint.

    Every fragment begins new games, with a seed of its own: a resumed run has the weights of one that was never stopped.
    """

    teams: Mapping[str, str]
    """The team of each agent, by patterns of whole names (regular expressions), the first that matches. One team alone plays
    against itself."""
    opponents: Opponents = Opponents()

    def __post_init__(self) -> None:
        Control.__post_init__(self)
        require(bool(self.teams), f'{self.name}: teams is empty; give patterns of agents, such as {{".*": "players"}}')
        for team in self.teams.values():
            require(bool(re.fullmatch(r"\w+", team)), f"{self.name}: team {team!r} names a folder; use letters, digits and _")
        wrong = {"algorithm": self.replays, "batch": self.batch != 1, "actors": self.actors != 1, "max_lag": self.max_lag != 0}
        wrong |= {"scale_rewards": self.scale_rewards, "solved": self.solved is not None, "model.path": bool(self.model.path)}
        wrong |= {"environments.vectorization": self.environments.vectorization in ("envpool", "async")}
        wrong |= {"environments.workers": self.environments.workers > 0, "curiosity": self.curiosity is not None}
        for name in (name for name, given in wrong.items() if given):
            require(False, f"{self.name}: {name} is not there for several teams; leave it out")


def bound(agents: Sequence[str], teams: Mapping[str, str]) -> list[str]:
    """The team of each agent. Raises SpecError for an agent without one, and for a team without agents."""
    found = []
    for agent in agents:
        team = next((team for pattern, team in teams.items() if re.fullmatch(pattern, agent)), None)
        if team is None:
            raise SpecError(f"teams={dict(teams)} says nothing of {agent}; add a pattern, or .* at the end")
        found.append(team)
    if empty := set(teams.values()) - set(found):
        raise SpecError(f"teams={dict(teams)}: {sorted(empty)[0]} has none of the agents {list(agents)}; mend its pattern")
    return found


def priorities(win_N: NDArray[Any], power: float) -> NDArray[Any]:
    """Prioritised fictitious self-play: p ∝ (1 - w)^power, alike where every win rate is 1: ``[N]``."""
    weight_N = (1 - np.asarray(win_N, np.float64)) ** power
    total = weight_N.sum()
    return weight_N / total if total > 0 else np.full(len(weight_N), 1 / len(weight_N))


@dataclass
class Versions:
    """Frozen weights of all teams, and the payoff of each team against each version of another. A checkpoint holds both."""

    opponents: Opponents
    weights: dict[Version, dict[str, dict[str, Any]]] = field(default_factory=dict)
    """Arrays by version, team and name."""
    payoffs: dict[tuple[str, str, Version], tuple[float, float]] = field(default_factory=dict)
    """Games, and games won (half of a draw), of a team against a version of another."""

    def due(self, version: Version) -> bool:
        """Whether the weights of a version are to be kept."""
        return version % self.opponents.every == 0 and version not in self.weights

    def keep(self, version: Version, weights: dict[str, dict[str, Any]]) -> None:
        """Keep a version; beyond the bound the one between the closest neighbours goes, never the first or the latest."""
        self.weights[version] = weights
        if len(self.weights) <= self.opponents.keep:
            return
        kept = sorted(self.weights)
        inner = range(1, len(kept) - 1)
        gone = kept[min(inner, key=lambda at: kept[at + 1] - kept[at - 1])]
        del self.weights[gone]
        self.payoffs = {key: value for key, value in self.payoffs.items() if key[2] != gone}

    def win_rate(self, team: str, other: str, version: Version) -> float:
        """Wins of a team over a version, as if it had also won one game of two before the first: (wins + 1) / (games + 2)."""
        games, wins = self.payoffs.get((team, other, version), (0.0, 0.0))
        return (wins + 1) / (games + 2)

    def note(self, team: str, other: str, version: Version, won: float) -> None:
        """Count a game: ``won`` is 1, 0, or a half for a draw."""
        games, wins = self.payoffs.get((team, other, version), (0.0, 0.0))
        self.payoffs[team, other, version] = games + 1, wins + won

    def chosen(self, team: str, other: str, random: float) -> Version:
        """The version of ``other`` that ``team`` plays against, by the query; ``random`` is in [0, 1)."""
        kept = sorted(self.weights)
        win_N = np.array([self.win_rate(team, other, version) for version in kept])
        chance_N = priorities(win_N if self.opponents.query == "prioritised" else np.zeros(len(kept)), self.opponents.power)
        return kept[min(int(np.searchsorted(chance_N.cumsum(), random, "right")), len(kept) - 1)]

    @property
    def metrics(self) -> Metrics:
        """Versions kept, and the win rates over the first and the latest of each."""
        found: Metrics = {"league/versions": float(len(self.weights))}
        for team, other, version in self.payoffs:
            for name, one in (("first", min(self.weights)), ("latest", max(self.weights))):
                if one == version:
                    found[f"{team}/wins/{name} {other}"] = self.win_rate(team, other, version)
        return found

    def state(self) -> State:
        arrays = {
            f"{version}/{team}/{name}": array
            for version, teams in self.weights.items()
            for team, named in teams.items()
            for name, array in named.items()
        }
        return State(arrays, {"payoffs": [[*key, *value] for key, value in self.payoffs.items()]})

    def load_state(self, state: State) -> None:
        self.weights = {}
        for key in state.arrays:
            version, team, name = key.split("/", 2)
            self.weights.setdefault(int(version), {}).setdefault(team, {})[name] = state.arrays[key]
        self.payoffs = {
            (team, other, int(version)): (games, wins) for team, other, version, games, wins in state.values["payoffs"]
        }
