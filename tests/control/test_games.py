"""Games of several agents: rows, ends that differ, and agents bound to who decides for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("gymnasium")

from stage_examples import a_policy, a_stage, collected, launched

import control_examples as examples
from penstock.control.environments import Environments
from penstock.control.episodes import EpisodeLog
from penstock.control.stage import EnvironmentsSpec
from penstock.core.errors import SpecError
from penstock.models.control import save_policy


def spec(count: int = 2, agents: dict[str, str] | None = None, **options: Any) -> EnvironmentsSpec:
    id = f"{examples.__file__}:chase"
    return EnvironmentsSpec(id=id, count=count, vectorization="parallel", agents=agents or {}, options=options)


def test_every_agent_that_learns_is_a_row_of_its_game() -> None:
    """Agents 0 and 1 of a game show [step, number of the agent]; the game takes 4 steps."""
    found = collected(Environments(spec(), 0), 9)
    assert found.observation_TNF[:, :, 1].tolist() == [[0, 1, 0, 1]] * 9
    assert found.observation_TNF[:4, 0, 0].tolist() == [0, 1, 2, 3]
    assert np.flatnonzero(~found.acted_TN[:, 0]).tolist() == [4]
    assert np.flatnonzero(found.start_TN[:, 0]).tolist() == [0, 5]


def test_an_agent_that_is_done_earlier_is_idle_until_its_game_begins_anew() -> None:
    """Agent 1 is done after 2 steps of 4: it acts in steps 0, 1, and again from the step after the game's new beginning."""
    found = collected(Environments(spec(early=2), 0), 12)
    assert np.flatnonzero(found.acted_TN[:, 1]).tolist() == [0, 1, 5, 6, 10, 11]
    assert np.flatnonzero(found.start_TN[:, 1]).tolist() == [0, 5, 10]
    over = found.ends.terminated_K & (found.ends.environment_K == 1)
    assert found.ends.step_K[over].tolist() == [1, 6, 11]
    assert found.ends.observation_KF[over, 0].tolist() == [2, 2, 2]
    log = EpisodeLog(4)
    log.read(found)
    assert sorted(set(log.recent)) == [2.0, 4.0]


def test_vectors_of_different_lengths_end_in_zeros(tmp_path: Path) -> None:
    found = collected(Environments(spec(longer=2), 0), 2)
    assert found.observation_TNF[:, :2].tolist() == [[[0, 0, 0, 0], [0, 1, 7, 7]], [[1, 0, 0, 0], [1, 1, 7, 7]]]
    save_policy(a_policy(4, (2,)), tmp_path / "wide")
    save_policy(a_policy(2, (2,)), tmp_path / "narrow")
    collected(Environments(spec(agents={"agent_1": "learner", ".*": str(tmp_path / "wide")}, longer=2), 0), 2)
    with pytest.raises(SpecError, match="reads 2 numbers, and agent_1 sees 4"):
        Environments(spec(agents={"agent_0": "learner", ".*": str(tmp_path / "narrow")}, longer=2), 0)


def test_other_agents_are_played_by_a_saved_policy_and_by_chance(tmp_path: Path) -> None:
    policy = a_policy(2, (2,))
    policy.network.decide.bias.data[:] = policy.network.decide.bias.new_tensor([-9.0, 9.0])
    save_policy(policy, tmp_path / "other")
    examples.CHASED.clear()
    found = collected(Environments(spec(agents={"agent_0": "learner", ".*": str(tmp_path / "other")}), 0), 8)
    assert found.reward_TN.shape == (8, 2)
    assert {action for agent, action in examples.CHASED if agent == "agent_1"} == {1}
    examples.CHASED.clear()
    collected(Environments(spec(agents={"agent_0": "learner", ".*": "random"}), 0), 30)
    assert {action for agent, action in examples.CHASED if agent == "agent_1"} == {0, 1}


@pytest.mark.parametrize(
    ("agents", "options", "words"),
    [
        ({"agent_0": "learner"}, {}, "says nothing of agent_1"),
        ({".*": "random"}, {}, r"no agent of .* learns"),
        ({}, {"differs": True}, "agent_1 has"),
    ],
)
def test_agents_that_cannot_be_bound_are_refused(agents: dict[str, str], options: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        Environments(spec(agents=agents, **options), 0)


def test_agents_without_a_game_and_a_game_that_is_none_are_refused() -> None:
    with pytest.raises(SpecError, match="vectorization=parallel"):
        EnvironmentsSpec(id="CartPole-v1", agents={".*": "learner"})
    with pytest.raises(SpecError, match="no parallel game"):
        Environments(EnvironmentsSpec(id=f"{examples.__file__}:counting", count=1, vectorization="parallel"), 0)


def test_a_stage_trains_in_a_game_and_evaluates_whole_episodes(tmp_path: Path) -> None:
    result = launched(a_stage(environments=spec(count=4, early=2)), tmp_path)
    assert result.metrics[-1]["values"]["evaluation/reward"] == 3.0  # 4 steps of one agent, 2 of the other


def test_a_game_of_pettingzoo_is_stepped() -> None:
    pytest.importorskip("mpe2")
    made = Environments(EnvironmentsSpec(id="mpe2.simple_spread_v3:parallel_env", count=2, vectorization="parallel"), 0)
    found = collected(made, 30)
    assert found.observation_TNF.shape == (30, 6, 18)
    assert found.ends.truncated_K.sum() == 6
    assert not found.ends.terminated_K.any()
