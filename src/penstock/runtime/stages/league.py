"""A league as the session runs it: one stream of fragments, and a learner for each team."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from penstock.config.run import Run
from penstock.config.spec import require
from penstock.control.environments import Environments
from penstock.control.episodes import Camera, EpisodeLog
from penstock.control.fragments import Fragment, not_finite
from penstock.control.league import League, Versions, bound
from penstock.control.learning import Labeller
from penstock.control.normalizing import Normalizing
from penstock.control.preparing import labeller_of, policy_of
from penstock.control.teams import TeamActor, of_team, played_by
from penstock.core.contracts import Holder, State
from penstock.core.errors import NonFiniteError
from penstock.core.sentinels import Alarm
from penstock.core.types import Metrics
from penstock.loops.learn import Step, Trainer, Watcher, mean_metrics
from penstock.models.control import ControlPolicy, save_policy
from penstock.observe.machine import seen
from penstock.observe.sentinels import Sentinels
from penstock.runtime.build import Models, seed_of
from penstock.runtime.context import StageContext
from penstock.runtime.stages import Evaluation, StageRuntime
from penstock.runtime.stages.control import LIMITS
from penstock.train.learner import DeviceLearner, LearnerPlan


@dataclass
class Team:
    """A team's learner, and what it needs."""

    policy: ControlPolicy
    trainer: Trainer
    labeller: Labeller
    normalizing: Normalizing
    log: EpisodeLog

    @property
    def holders(self) -> dict[str, Holder]:
        named: dict[str, Holder] = {"learner": self.trainer.learner, "sentinels": self.trainer.watcher, "episodes": self.log}
        return named | {"moments": self.normalizing}


@dataclass
class Together:
    """The state of every team's holder of one name."""

    parts: Mapping[str, Holder]

    def state(self) -> State:
        states = {team: part.state() for team, part in self.parts.items()}
        arrays = {f"{team}/{name}": array for team, state in states.items() for name, array in state.arrays.items()}
        return State(arrays, {team: state.values for team, state in states.items()})

    def load_state(self, state: State) -> None:
        for team, part in self.parts.items():
            first = f"{team}/"
            mine = {name[len(first) :]: state.arrays[name] for name in state.arrays if name.startswith(first)}
            part.load_state(State(mine, state.values[team]))


class Watchers(Watcher):
    """The sentinels of all teams as one: a team whose weights are bad spoils the games of all."""

    parts: list[Watcher]

    def __init__(self, parts: list[Watcher]) -> None:
        self.__dict__["parts"] = parts  # all that is set later is set in each of them

    def __setattr__(self, name: str, value: Any) -> None:
        for part in self.parts:
            setattr(part, name, value)

    @property
    def over(self) -> bool:  # type: ignore[override]
        return any(part.over for part in self.parts)

    def healthy(self, step: int) -> bool:
        return all(part.healthy(step) for part in self.parts)


@dataclass
class LeagueRuntime(StageRuntime):
    """Fragment after fragment: all teams act, then each trains on what its live policy decided."""

    stage: League
    seed: int
    base: Path
    context: StageContext
    actor: TeamActor
    teams: dict[str, Team]
    held_out: Environments | None = None

    def __post_init__(self) -> None:
        self.together = Watchers([team.trainer.watcher for team in self.teams.values()])
        names = next(iter(self.teams.values())).holders
        self.holders = {name: Together({team: one.holders[name] for team, one in self.teams.items()}) for name in names}
        self.holders["versions"] = self.actor.versions
        self.evaluate = self._evaluate if self.stage.evaluation else None
        self.log = EpisodeLog(self.actor.environments.count)

    @property
    def watcher(self) -> Watcher:
        return self.together

    async def steps(self, start: int) -> AsyncGenerator[Step, None]:
        spans = self.context.recorder.role("learner")
        for index in range(start, self.stage.steps):
            if self.together.over:
                return
            self._keep(index)
            began = time.perf_counter()
            with spans.span("generate", step=index):
                fragment = self.actor.collect(index)
            self.actor.settle(fragment)
            acted = time.perf_counter() - began
            metrics, alarms = self.described(fragment), list[Alarm]()
            for name, team in self.teams.items():
                with team.trainer.watch(index) as watch, spans.span("train", step=index, team=name):
                    own = of_team(fragment, self.actor.live_TN, self.actor.team_N == name)
                    found = self._trained(team, own, index, watch)
                    loss = {"loss": found.pop("loss", 0.0)}
                    metrics |= {f"{name}/{key}": value for key, value in (loss | watch.after(found)).items()}
                alarms += watch.alarms
            metrics["loss"] = float(np.mean([metrics[f"{name}/loss"] for name in self.teams]))
            metrics |= seen("learner") | {"seconds/acted": acted, "seconds/trained": time.perf_counter() - began - acted}
            metrics["steps_per_second"] = fragment.steps / (time.perf_counter() - began)
            yield Step(index, index + 1, metrics | self.actor.versions.metrics, alarms=tuple(alarms))

    def _keep(self, version: int) -> None:
        if self.actor.versions.due(version):
            weights = {
                name: {key: tensor.detach().clone() for key, tensor in team.policy.weights()}
                for name, team in self.teams.items()
            }
            self.actor.versions.keep(version, weights)

    def described(self, fragment: Fragment) -> Metrics:
        """Returns of each team's live policy, and what the environment counts of its games (``facts``)."""
        ended, ends = self.log.ended(fragment), fragment.ends
        over_K = ends.terminated_K | ends.truncated_K
        team_E, live_E = (
            self.actor.team_N[ends.environment_K[over_K]],
            self.actor.live_TN[ends.step_K, ends.environment_K][over_K],
        )
        metrics: Metrics = {}
        for name, team in self.teams.items():
            mine = [one for one, own, live in zip(ended, team_E == name, live_E, strict=True) if own and live]
            steps = int((fragment.acted_TN & self.actor.live_TN)[:, self.actor.team_N == name].sum())
            metrics |= {f"{name}/{key}": value for key, value in team.log.note(mine, steps).items()}
        facts = getattr(self.actor.environments.blocks[0].vector, "facts", None)
        return metrics | {f"episode/{key}": value for key, value in (facts() if facts else {}).items()}

    def _trained(self, team: Team, fragment: Fragment, index: int, watch: Any) -> Metrics:
        """All optimizer steps of a team on its part, whose moments are taken; none where that is less than its minibatches, or
        an environment gave what is no number."""
        if broken := not_finite(fragment):
            watch.skipped(NonFiniteError(broken))
            return {}
        metrics = self._stepped(team, fragment, index, watch)
        team.normalizing.observe(fragment)
        return metrics

    def _stepped(self, team: Team, fragment: Fragment, index: int, watch: Any) -> Metrics:
        remembers = team.policy.remembers or self.stage.algorithm.estimator == "vtrace"
        if (fragment.reward_TN.shape[1] if remembers else fragment.steps // 2) < self.stage.minibatches:
            return {}
        parts: list[Metrics] = []
        for units in team.labeller.minibatches(fragment, index):
            planned = index * self.stage.epochs * self.stage.minibatches + len(parts)
            parts.append(team.trainer.step(units, watch, not parts, planned))
            if watch.enough(parts[-1]):
                break
        return mean_metrics(parts)

    async def _evaluate(self) -> Evaluation:
        """Each team as it is, against the others as they are and against their first versions."""
        evaluation, actor, metrics = self.stage.evaluation, self.actor, {}
        assert evaluation is not None
        seed = seed_of(self.seed, "evaluation")
        if self.held_out is None:
            given = self.stage.environments, seed, self.base, evaluation.episodes
            self.held_out = Environments(*given, interface=self.stage.evaluated)
        self._keep(0)
        live, first = {name: team.policy for name, team in self.teams.items()}, min(actor.versions.weights)
        games = (self.held_out, actor.team_L, evaluation.longest, seed)
        camera = Camera(self.held_out, evaluation.film)
        for name, value in played_by(games[0], live, *games[1:], camera.shoot).items():
            metrics[f"evaluation/{name}"] = value
        for name in self.teams if len(self.teams) > 1 else ():
            against = {other: live[name] if other == name else actor.decider(other, first) for other in live}
            metrics[f"evaluation/{name} against first"] = played_by(games[0], against, *games[1:])[name]
        score, said = next(reversed(metrics.values())), f"a game of {' and '.join(live)} as they are"
        return metrics | {"evaluation/reward": score}, camera.groups(self.context.folder, said, [])

    @property
    def decode(self) -> Any:
        """Steps of environments are no text."""
        return lambda *steps: ""

    def save(self, folder: Path) -> None:
        """A folder of each team's policy, and of its kept versions: ``TEAM``, ``TEAM-VERSION``."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, team in self.teams.items():
            save_policy(team.policy, folder / name)
            for version in self.actor.versions.weights:
                save_policy(self.actor.decider(name, version), folder / f"{name}-{version}")

    async def close(self) -> None:
        self.actor.environments.close()
        if self.held_out is not None:
            self.held_out.close()


def prepare(stage: League, run: Run, models: Models, base: Path, context: StageContext) -> LeagueRuntime:
    """Make environments, and a policy and a learner for each team."""
    require(context.bootstrap is None, "a League acts and learns in one process; set runtime=local")
    require(str(models.device) == "cpu", f"device={models.device}: a League acts on the processor; set device=cpu")
    seed = seed_of(run.seed, stage.name)
    environments = Environments(stage.environments, seed_of(seed, "environments"), base, interface=stage.interface)
    agents: Any = getattr(environments.blocks[0].vector, "learners", None)
    require(
        agents is not None,
        f"environments.id={stage.environments.id}: it has no agents; use a parallel game, or a vector environment "
        "whose learners are the names of the agents of a game",
    )
    team_L = bound(agents, stage.teams)
    teams = {name: _team(stage, run, models, environments, name) for name in dict.fromkeys(team_L)}
    policies = {name: team.policy for name, team in teams.items()}
    actor = TeamActor(environments, policies, team_L, Versions(stage.opponents), seed)
    actor.steps = stage.fragment
    return LeagueRuntime(stage, seed, base, context, actor, teams)


def _team(stage: League, run: Run, models: Models, environments: Environments, name: str) -> Team:
    seed = seed_of(seed_of(run.seed, stage.name), f"team {name}")
    policy = policy_of(stage, environments, seed_of(seed, "model"), models.device, None)
    updates = stage.steps * stage.epochs * stage.minibatches
    learner = DeviceLearner(policy, stage.learner, LearnerPlan(total_steps=updates, seed=seed))
    trainer = Trainer(
        learner, stage.algorithm.loss(), Sentinels(run.sentinels, clip_norm=stage.learner.clip_norm, limits=LIMITS)
    )
    labeller: Any = labeller_of(stage, policy, learner, seed_of(seed, "minibatches"))
    log = EpisodeLog(environments.count)
    return Team(policy, trainer, labeller, Normalizing(policy, stage.algorithm.discount, False), log)
