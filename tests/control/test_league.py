"""A league's parts: agents bound by pattern, versions kept, opponents chosen, and who trains on which steps."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("gymnasium")

import control_examples as examples
from penstock.config.run import Run
from penstock.config.spec import parse, plain
from penstock.control.environments import Environments
from penstock.control.league import League, Opponents, Versions, bound, priorities
from penstock.control.stage import EnvironmentsSpec
from penstock.control.teams import LIVE, TeamActor, of_team
from penstock.core.errors import SpecError
from penstock.models.control import ControlPolicy, Shape, new_policy

TEAMS = {"agent_0": "left", "agent_1": "right"}


def chases(count: int = 4, **options: Any) -> EnvironmentsSpec:
    return EnvironmentsSpec(id=f"{examples.__file__}:chase", count=count, vectorization="parallel", options=options)


def weights(policy: ControlPolicy) -> dict[str, Any]:
    return {name: tensor.clone() for name, tensor in policy.weights()}


def acting(opponents: Opponents, teams: dict[str, str] | None = None, steps: int = 9, kept: bool = True) -> TeamActor:
    """Four games of two agents, whose version 0 is kept."""
    made = Environments(chases(), 0)
    team_L = bound(["agent_0", "agent_1"], teams or TEAMS)
    shape = Shape(made.numbers, made.choices, hidden=(4,))
    policies = {name: new_policy(shape, seed, "cpu") for seed, name in enumerate(dict.fromkeys(team_L))}
    versions = Versions(opponents)
    if kept:
        versions.keep(0, {name: weights(policy) for name, policy in policies.items()})
    actor = TeamActor(made, policies, team_L, versions, 0)
    actor.steps = steps
    return actor


def test_agents_are_bound_to_teams_by_the_first_pattern_that_fits() -> None:
    agents = ["hider_0", "hider_1", "seeker_0"]
    assert bound(agents, {"hider_.*": "hiders", ".*": "seekers"}) == ["hiders", "hiders", "seekers"]
    with pytest.raises(SpecError, match="says nothing of seeker_0"):
        bound(agents, {"hider_.*": "hiders"})
    with pytest.raises(SpecError, match="prey has none of the agents"):
        bound(agents, {".*": "hiders", "prey": "prey"})


def test_priorities_are_of_the_games_that_are_lost() -> None:
    """(1 - w)^2 of 0, 1/2 and 1 is 1, 1/4 and 0."""
    assert priorities(np.array([0.0, 0.5, 1.0]), 2.0).tolist() == [0.8, 0.2, 0.0]
    assert priorities(np.array([1.0, 1.0]), 2.0).tolist() == [0.5, 0.5]


def test_payoffs_count_games_and_choose_by_them() -> None:
    """Three games won of three over version 0: w = 4/5; none played with version 1: w = 1/2. p = (1/5, 1/2) / 0.7."""
    versions = Versions(Opponents(query="prioritised", power=1.0))
    for version in (0, 1):
        versions.keep(version, {})
    for _ in range(3):
        versions.note("left", "right", 0, 1.0)
    assert versions.win_rate("left", "right", 0) == pytest.approx(0.8)
    assert versions.win_rate("right", "left", 0) == 0.5
    assert [versions.chosen("left", "right", random) for random in (0.0, 0.28, 0.29, 0.999)] == [0, 0, 1, 1]


def test_versions_are_bounded_and_spread_over_the_run() -> None:
    """Those that go, in order: 1, 3, 5, 6 and 2, the oldest of equals."""
    versions = Versions(Opponents(keep=4, every=1))
    for version in range(9):
        versions.note("left", "right", version, 1.0)
        versions.keep(version, {"left": {}})
    assert sorted(versions.weights) == [0, 4, 7, 8]
    assert {key[2] for key in versions.payoffs} <= set(versions.weights)


def test_versions_and_payoffs_come_back_from_their_state() -> None:
    versions = acting(Opponents(query="uniform")).versions
    versions.note("left", "right", 0, 0.5)
    again = Versions(Opponents(query="uniform"))
    again.load_state(versions.state())
    assert again.payoffs == {("left", "right", 0): (1.0, 0.5)}
    for name, array in versions.weights[0]["left"].items():
        assert torch.equal(again.weights[0]["left"][name], array)


def test_each_team_gets_the_columns_of_its_own_agents_alone() -> None:
    actor = acting(Opponents())
    fragment = actor.collect(0)
    for number, name in enumerate(("left", "right")):
        own = of_team(fragment, actor.live_TN, actor.team_N == name)
        assert (own.observation_TNF[..., 1] == number).all()
        assert own.reward_TN.shape == (9, 4)


def test_steps_of_frozen_versions_are_not_trained_on() -> None:
    """Every game is played against version 0, so that in each one agent of the two is live."""
    actor = acting(Opponents(query="uniform", share=1.0))
    fragment = actor.collect(3)
    assert (actor.live_TN.reshape(9, 4, 2).sum(2) == 1).all()
    trained = sum(
        of_team(fragment, actor.live_TN, actor.team_N == name).steps for name in actor.policies
    )  # a game's resetting step is no step
    assert trained == int((fragment.acted_TN & actor.live_TN).sum()) == 4 * 8


def test_matches_that_ended_are_counted_and_draws_are_halves() -> None:
    """9 steps hold two games each of 4 steps, with a resetting step between; both agents always get 1."""
    actor = acting(Opponents(query="uniform", share=1.0))
    actor.settle(actor.collect(0))
    games, wins = np.sum(list(actor.versions.payoffs.values()), 0)
    assert (games, wins) == (8, 4)


def test_opponents_are_a_function_of_seed_fragment_game_and_episode() -> None:
    actor, other = (acting(Opponents(query="uniform", share=0.5)) for _ in range(2))
    actor.collect(0)
    actor.collect(7)
    other.collect(7)
    assert actor.matches == other.matches
    assert (actor.version_N == other.version_N).all()


def test_one_team_plays_against_its_own_past() -> None:
    actor = acting(Opponents(query="uniform", share=1.0), {".*": "players"})
    actor.collect(0)
    assert {match.side for match in actor.matches} == {(0,), (1,)}
    assert (actor.version_N.reshape(4, 2) == LIVE).sum(1).tolist() == [1, 1, 1, 1]


def test_the_latest_query_leaves_every_agent_live() -> None:
    actor = acting(Opponents(query="latest", share=1.0))
    actor.collect(0)
    assert actor.live_TN.all()
    assert actor.matches == []


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"teams": {}}, "teams is empty"),
        ({"teams": {".*": "a/b"}}, "names a folder"),
        ({"solved": 1.0}, "solved is not there"),
        ({"environments": EnvironmentsSpec(id="Pong-v5", vectorization="envpool")}, "vectorization is not there"),
    ],
)
def test_what_a_league_cannot_do_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        League(**({"name": "league", "environments": chases(), "teams": TEAMS} | fields))


def test_a_league_is_read_back_as_it_was_written() -> None:
    stage = League(name="league", environments=chases(), teams=TEAMS, opponents=Opponents(query="prioritised", keep=4))
    run = Run(name="run", stages=(stage,))
    assert parse(Run, json.loads(json.dumps(plain(run)))) == run
