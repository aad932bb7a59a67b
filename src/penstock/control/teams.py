"""Acting for several teams in the same games: live policies and frozen versions of them, chosen for each episode."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from penstock.control.actor import Actor, Buffers, Turn
from penstock.control.environments import Environments
from penstock.control.fragments import Ends, Fragment
from penstock.control.league import Versions
from penstock.core.seeds import seed_of
from penstock.core.types import BoolArray, FloatArray, IntArray, Version
from penstock.models.control import ControlPolicy

LIVE = -1
"""In place of a version: the weights as they are now."""


@dataclass(frozen=True)
class Match:
    """An episode of a game in which one side learns and the others are frozen."""

    game: int
    begin: int
    """Its first step in the fragment."""
    side: tuple[int, ...]
    """Agents that learn, by their place in the game."""
    versions: Mapping[str, Version]
    """Of the other teams."""


class TeamActor(Actor):
    """Acts for all teams. Row ``g * L + l`` is agent l of game g, and ``team_L`` says whose it is.

    Whom an episode is played against is a function of seed, fragment, game and episode alone.
    """

    def __init__(
        self,
        environments: Environments,
        policies: Mapping[str, ControlPolicy],
        team_L: list[str],
        versions: Versions,
        seed: int,
    ) -> None:
        super().__init__(environments, next(iter(policies.values())), 0, seed)
        self.policies, self.team_L, self.versions = policies, team_L, versions
        self.judged = True
        self.games = environments.count // len(team_L)
        self.team_N = np.array(team_L * self.games)
        one = len(policies) == 1
        self.sides = [(at,) for at in range(len(team_L))] if one else [tuple(places(team_L, team)) for team in policies]
        self.frozen: dict[tuple[str, Version], ControlPolicy] = {}

    def collect(self, version: Version, number: int | None = None) -> Fragment:
        """The next fragment, in new games. Afterwards ``live_TN`` says which steps live policies decided, ``matches`` who
        played against past versions."""
        self.number, self.matches = version if number is None else number, list[Match]()
        self.begin_anew(seed_of(self.seed, f"games {self.number}"))
        self.version_N = np.full(self.environments.count, LIVE)
        self.live_TN = np.ones((self.steps, self.environments.count), bool)
        self.episode_G = np.zeros(self.games, np.int64)
        self.frozen = {key: policy for key, policy in self.frozen.items() if key[1] in self.versions.weights}
        return super().collect(version, number)

    @torch.inference_mode()
    def _decided(self, buffers: Buffers, turns: Sequence[Turn], noise_TNW: torch.Tensor) -> list[Any]:
        ((step, _, block),) = turns
        noise_NW = noise_TNW[step]
        for game in np.flatnonzero(block.start_N.reshape(self.games, -1).any(1)).tolist():
            self._match(game, step)
        self.live_TN[step] = self.version_N == LIVE
        buffers.observation_TNF[step], buffers.start_TN[step] = block.observation_NF, block.start_N
        self.state_NS *= torch.from_numpy(~block.start_N)[:, None]
        observation_NF = torch.from_numpy(buffers.observation_TNF[step])
        for policy, rows in self._deciders():
            out, decision, self.state_NS[rows] = policy.step(observation_NF[rows], self.state_NS[rows], noise_NW[rows])
            buffers.output_TNW[step, rows], buffers.decision_TND[step, rows] = out.numpy(), decision.numpy()
        return [buffers.decision_TND[step]]

    def _match(self, game: int, step: int) -> None:
        """Choose who decides in a game that begins."""
        opponents, width = self.versions.opponents, len(self.team_L)
        rows = slice(game * width, (game + 1) * width)
        self.version_N[rows] = LIVE
        numbers = (self.seed, self.number, game, int(self.episode_G[game]))
        random = np.random.Generator(np.random.Philox(np.random.SeedSequence(numbers)))
        self.episode_G[game] += 1
        if opponents.query == "latest" or not self.versions.weights or random.random() >= opponents.share:
            return
        side = self.sides[int(random.integers(len(self.sides)))]
        others = [place for place in range(width) if place not in side]
        team = self.team_L[side[0]]
        named = dict.fromkeys(self.team_L[place] for place in others)
        versions = {other: self.versions.chosen(team, other, random.random()) for other in named}
        self.version_N[[rows.start + place for place in others]] = [versions[self.team_L[place]] for place in others]
        self.matches.append(Match(game, step, side, versions))

    def _deciders(self) -> Iterator[tuple[ControlPolicy, IntArray]]:
        """Each policy that decides now, and its rows."""
        for team in self.policies:
            mine_N = self.team_N == team
            for version in np.unique(self.version_N[mine_N]).tolist():
                yield self.decider(team, version), np.flatnonzero(mine_N & (self.version_N == version)).astype(np.int32)

    def decider(self, team: str, version: Version) -> ControlPolicy:
        """The policy of a team, of a version that is kept or as it is now."""
        if version == LIVE:
            return self.policies[team]
        if (team, version) not in self.frozen:
            policy = copy.deepcopy(self.policies[team])
            weights = self.versions.weights[version][team]
            policy.network.load_state_dict({name: torch.as_tensor(array) for name, array in weights.items()})
            self.frozen[team, version] = policy
        return self.frozen[team, version]

    def _values(self, ends: Ends, mine_K: BoolArray) -> FloatArray:
        """By each team's live critic; rows of frozen versions are never trained on."""
        value_K = np.zeros(len(ends.step_K), np.float32)
        for team, policy in self.policies.items():
            own_K = mine_K & (self.team_N[ends.environment_K] == team)
            if own_K.any():
                value_K[own_K] = policy.values(ends.observation_KF[own_K], ends.state_KS[own_K])
        return value_K[mine_K]

    def settle(self, fragment: Fragment) -> None:
        """Count the matches of a fragment that ended in it: a side wins by a higher mean return than the others'."""
        width, ends = len(self.team_L), fragment.ends
        over_TN = np.zeros(fragment.reward_TN.shape, bool)
        over_TN[ends.step_K, ends.environment_K] = ends.terminated_K | ends.truncated_K
        for match in self.matches:
            rows = slice(match.game * width, (match.game + 1) * width)
            again = np.flatnonzero(fragment.start_TN[match.begin + 1 :, rows].any(1))
            end = match.begin + 1 + int(again[0]) if len(again) else len(over_TN)
            if not over_TN[match.begin : end, rows].any(0).all():
                continue
            return_L = fragment.reward_TN[match.begin : end, rows].sum(0)
            own = return_L[list(match.side)].mean()
            for other, version in match.versions.items():
                theirs = return_L[[at for at in places(self.team_L, other) if at not in match.side]].mean()
                self.versions.note(self.team_L[match.side[0]], other, version, float((np.sign(own - theirs) + 1) / 2))


def places(team_L: list[str], team: str) -> list[int]:
    """Where the agents of a team are among those of a game."""
    return [at for at, one in enumerate(team_L) if one == team]


def of_team(fragment: Fragment, live_TN: BoolArray, row_N: BoolArray) -> Fragment:
    """The columns of a fragment that a team's live policy decided in at least once; nothing else is trained on."""
    mine = np.flatnonzero(row_N & (live_TN & fragment.acted_TN).any(0))
    place_N = np.full(len(row_N), -1)
    place_N[mine] = np.arange(len(mine))
    mine_K = place_N[fragment.ends.environment_K] >= 0
    kept = {name: value[mine_K] for name, value in vars(fragment.ends).items()}
    kept["environment_K"] = place_N[kept["environment_K"]].astype(np.int32)
    columns = {name: value[:, mine] for name, value in vars(fragment).items() if name.endswith(("_TN", "_TNF", "_TND"))}
    columns["acted_TN"] = columns["acted_TN"] & live_TN[:, mine]
    state_NS, following_K = fragment.state_NS[mine], fragment.following_K[mine_K]
    return replace(fragment, **columns, state_NS=state_NS, ends=Ends(**kept), following_K=following_K)


@torch.inference_mode()
def played_by(
    environments: Environments,
    deciders: Mapping[str, ControlPolicy],
    team_L: list[str],
    steps: int,
    seed: int,
    shoot: Callable[[], None] = lambda: None,
) -> dict[str, float]:
    """The mean return of each team's agents in one episode of every game, decisions sampled; cut after ``steps`` steps.
    ``shoot`` is called before each step of the first game."""
    count = environments.count
    team_N = np.array(team_L * (count // len(team_L)))
    environments.reset(seed)
    first = next(iter(deciders.values()))
    state_NS, generator = first.first_state(count), torch.Generator().manual_seed(seed)
    return_N, running_N = np.zeros(count), np.ones(count, bool)
    for _ in range(steps):
        if running_N[0]:
            shoot()
        noise_NW = first.decisions.noise(1, count, generator)[0]
        seen_NF = torch.from_numpy(environments.observation_NF)
        parts: list[tuple[Any, Any]] = []
        for team, policy in deciders.items():
            rows = np.flatnonzero(team_N == team)
            _, decision, state_NS[rows] = policy.step(seen_NF[rows], state_NS[rows], noise_NW[rows])
            parts.append((rows, decision.numpy()))
        decision_ND = np.empty((count, parts[0][1].shape[1]), parts[0][1].dtype)
        for rows, decision in parts:
            decision_ND[rows] = decision
        stepped = environments.step(decision_ND)
        return_N += np.where(running_N, stepped.reward_N, 0)
        running_N &= ~(stepped.terminated_N | stepped.truncated_N)
        if not running_N.any():
            break
    return {team: float(return_N[team_N == team].mean()) for team in deciders}
