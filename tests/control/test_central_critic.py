"""MAPPO's critic: it reads what all learning agents of a game see, and no decision depends on that."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("gymnasium")

from stage_examples import a_policy, a_stage, launched

import control_examples as examples
from penstock.control.environments import Environments
from penstock.control.league import League, Opponents
from penstock.control.preparing import policy_of
from penstock.control.spaces import Observations
from penstock.control.stage import Control, EnvironmentsSpec, Interface, PolicyNetwork
from penstock.core.errors import SpecError
from penstock.models.control import ControlPolicy, load_policy, save_policy

CENTRAL = Interface(central=True)


def spec(count: int = 2, agents: dict[str, str] | None = None, workers: int = 0) -> EnvironmentsSpec:
    id = f"{examples.__file__}:chase"
    return EnvironmentsSpec(id=id, count=count, vectorization="parallel", agents=agents or {}, workers=workers)


def stage(environments: EnvironmentsSpec) -> Control:
    return a_stage(environments=environments, model=PolicyNetwork(hidden=(8,), critic="central", normalize=True))


def policy() -> ControlPolicy:
    """One of a game of two agents that see two numbers each."""
    return a_policy(2, (2,), critic="central", context=4, normalize=True)


def test_a_row_shows_its_own_agent_and_then_all_of_its_game() -> None:
    """Agents 0 and 1 show [step, number]; both games begin at step 0."""
    made = Environments(spec(), 0, interface=CENTRAL)
    assert made.numbers == 2
    assert made.observation_NF.tolist() == [[0, 0, 0, 0, 0, 1], [0, 1, 0, 0, 0, 1]] * 2


def test_a_mask_stays_last() -> None:
    from gymnasium import spaces

    seen = Observations("one", spaces.Box(0, 9, (1,)), 2, masked=True, agents=2)
    rows = seen.rows(np.array([[3.0], [4.0]]), np.array([[1, 0], [1, 1]]))
    assert rows.tolist() == [[3, 3, 4, 1, 0], [4, 3, 4, 1, 1]]


def test_what_others_see_moves_the_value_and_no_decision() -> None:
    own, seen = policy(), torch.randn(3, 6)
    other = seen.clone()
    other[:, 2:] += 1.0
    out, _ = own.network(seen)
    moved, _ = own.network(other)
    assert torch.equal(out[:, :2], moved[:, :2])
    assert not torch.isclose(out[:, 2], moved[:, 2]).any()


def test_no_gradient_of_decisions_reaches_what_others_see() -> None:
    seen = torch.randn(3, 6, requires_grad=True)
    policy().network(seen)[0][:, :2].sum().backward()
    assert seen.grad is not None
    assert seen.grad[:, :2].any()
    assert not seen.grad[:, 2:].any()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stage_trains_with_it_and_goes_on_from_its_folder(tmp_path: Path, workers: int) -> None:
    result = launched(stage(spec(4, workers=workers)), tmp_path)
    assert result.metrics[-1]["values"]["evaluation/reward"] == 4.0
    saved = load_policy(tmp_path / "run" / "model")
    assert (saved.network.shape.observation, saved.network.shape.context) == (2, 4)
    made = Environments(spec(), 0, interface=CENTRAL)
    assert policy_of(stage(spec()), made, 0, "cpu", tmp_path / "run" / "model").network.shape == saved.network.shape


def test_a_saved_one_plays_for_other_agents_who_see_only_their_own(tmp_path: Path) -> None:
    own = policy()
    own.network.decide.bias.data[:] = own.network.decide.bias.new_tensor([-9.0, 9.0])
    save_policy(own, tmp_path / "other")
    made = Environments(spec(agents={"agent_0": "learner", ".*": str(tmp_path / "other")}), 0)
    examples.CHASED.clear()
    made.step(np.zeros((2, 1), np.int64))
    assert {action for agent, action in examples.CHASED if agent == "agent_1"} == {1}


def test_it_is_refused_where_there_is_no_game() -> None:
    with pytest.raises(SpecError, match="vectorization=parallel"):
        stage(EnvironmentsSpec(id="CartPole-v1"))
    with pytest.raises(SpecError, match="needed twice"):
        PolicyNetwork(critic="central", memory=4)
    with pytest.raises(SpecError, match="names none; use a parallel"):
        Environments(EnvironmentsSpec(id=f"{examples.__file__}:counting", count=2), 0, interface=CENTRAL)


def test_each_team_of_a_league_has_one_that_reads_all_teams(tmp_path: Path) -> None:
    league = League(**vars(stage(spec(4))) | {"teams": {"agent_0": "first", ".*": "others"}, "opponents": Opponents(every=1)})
    launched(league, tmp_path)
    for team in ("first", "others", "first-1"):
        assert load_policy(tmp_path / "run" / "model" / team).network.shape.context == 4
