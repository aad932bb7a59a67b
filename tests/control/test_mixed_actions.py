"""Decisions with discrete parts and numbers at once: their log-probs, and the actions that environments get."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("gymnasium")

import gymnasium
from gymnasium import spaces
from stage_examples import a_policy, a_stage, launched

from penstock.config.learner import LearnerSpec
from penstock.control.environments import Environments
from penstock.control.games import Games
from penstock.control.spaces import Decisions
from penstock.control.stage import EnvironmentsSpec, PolicyNetwork
from penstock.models.control import load_policy
from penstock.models.decisions import Mixed

HERE = Path(__file__).resolve()
BOTH = frozenset({"logp", "entropy"})


class Aim(gymnasium.Env[Any, Any]):
    """One step: the reward is 1 for option 1, less the distance of a number from half."""

    observation_space = spaces.Box(0, 1, (1,))

    def __init__(self, named: bool = False, masked: bool = False) -> None:
        inner: dict[str, spaces.Space[Any]] = {"fire": spaces.Discrete(2), "angle": spaces.Box(-1, 1, (1,))}
        self.action_space = spaces.Dict(inner) if named else spaces.Tuple(tuple(inner.values()))
        self.info = {"action_mask": np.array([1, 0])} if masked else {}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.ones(1, np.float32), self.info

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        fire, angle = (action["fire"], action["angle"]) if isinstance(action, dict) else action
        return np.ones(1, np.float32), float(fire) - abs(float(angle[0]) - 0.5), True, False, self.info


def aim(**options: Any) -> Aim:
    return Aim(**options)


def spec(count: int = 2, **options: Any) -> EnvironmentsSpec:
    return EnvironmentsSpec(id=f"{HERE}:aim", count=count, options=options)


def test_a_log_prob_is_the_sum_of_those_of_its_parts() -> None:
    """Options of equal weight: log 1/2; a number one deviation (2) above its mean: -1/2 - log 2 - log(2π)/2."""
    made = Mixed((2,), 1, deviation=2.0)
    found = made.measured(torch.tensor([[0.0, 0.0, 3.0]]), torch.tensor([[1.0, 5.0]]), BOTH)
    assert found["logp"].item() == pytest.approx(-math.log(2) - 0.5 - math.log(2) - 0.5 * math.log(2 * math.pi))
    assert found["entropy"].item() == pytest.approx(math.log(2) + math.log(2) + 0.5 * math.log(2 * math.pi * math.e))


def test_the_most_likely_decision_has_the_largest_option_and_the_mean() -> None:
    made = Mixed((2, 3), 2)
    numbers = torch.tensor([[0.0, 1.0, 5.0, 0.0, 0.0, -0.25, 0.75]])
    assert made.sampled(numbers, None).tolist() == [[1.0, 0.0, -0.25, 0.75]]


def test_samples_are_of_the_distribution_that_is_measured() -> None:
    made, generator = Mixed((2,), 1), torch.Generator().manual_seed(0)
    numbers = torch.tensor([[math.log(0.8), math.log(0.2), 2.0]]).expand(20_000, -1)
    drawn = made.sampled(numbers, made.noise(1, 20_000, generator)[0])
    assert drawn[:, 0].mean().item() == pytest.approx(0.2, abs=0.01)
    assert drawn[:, 1].mean().item() == pytest.approx(2.0, abs=0.03)
    assert drawn[:, 1].detach().std().item() == pytest.approx(1.0, abs=0.03)


def test_entries_of_a_dictionary_and_of_what_is_in_it_are_found_again() -> None:
    inner = spaces.Tuple((spaces.Box(-1, 1, (2,)), spaces.Discrete(2, start=5)))
    made = Decisions("one", spaces.Dict({"a": inner, "b": spaces.MultiDiscrete([3, 3])}))
    assert (made.choices, made.continuous, made.size) == ((2, 3, 3), 2, 5)
    action = made.actions(np.array([[1, 2, 0, 0.5, 9.0]], np.float32))
    assert action["b"].tolist() == [[2, 0]]
    assert action["a"][0].tolist() == [[0.5, 1.0]]
    assert action["a"][1].tolist() == [6]
    (one,) = made.rows(action)
    assert made.space.contains({"a": (one["a"][0], np.int64(one["a"][1])), "b": one["b"]})


@pytest.mark.parametrize("options", [{}, {"named": True}])
@pytest.mark.parametrize("workers", [0, 2])
def test_environments_get_actions_of_their_space(options: dict[str, Any], workers: int) -> None:
    made = Environments(replace(spec(**options), workers=workers), 0, acting=True)
    try:
        assert (made.choices, made.continuous) == ((2,), 1)
        for block in made.blocks:
            block.send(np.array([[1, 0.5]] * block.count, np.float32))
            assert block.receive().reward_N.tolist() == [1.0] * block.count
    finally:
        made.close()


def test_a_mask_is_of_the_options_alone() -> None:
    made = Environments(spec(masked=True), 0)
    own = a_policy(1, (2,), 1, masked=True)
    own.network.decide.bias.data[:] = own.network.decide.bias.new_tensor([0.0, 9.0, 0.25])
    _, decision, _ = own.step(torch.from_numpy(made.observation_NF), own.first_state(2), None)
    assert decision[:, 0].tolist() == [0.0, 0.0]


def test_a_stage_learns_both_and_saves_them(tmp_path: Path) -> None:
    """Chance: half of the time fire, and a number of deviation 0.5 around 0 is 0.6 away from a half; the best is 1."""
    model, fast = PolicyNetwork(hidden=(16,), deviation=0.5), LearnerSpec(learning_rate=1e-2)
    stage = a_stage(environments=spec(32), model=model, minibatches=4, steps=20, learner=fast)
    assert launched(stage, tmp_path).metrics[-1]["values"]["evaluation/reward"] > 0.8
    shape = load_policy(tmp_path / "run" / "model").network.shape
    assert (shape.choices, shape.continuous) == ((2,), 1)


def test_agents_of_a_game_get_actions_of_their_space() -> None:
    class Both:
        def __init__(self) -> None:
            self.possible_agents, self.own = ["left", "right"], Aim(named=True)
            self.agents = list(self.possible_agents)

        def observation_space(self, agent: str) -> Any:
            return self.own.observation_space

        def action_space(self, agent: str) -> Any:
            return self.own.action_space

        def reset(self, seed: int | None = None) -> Any:
            self.agents = list(self.possible_agents)
            return {agent: np.ones(1, np.float32) for agent in self.agents}, {}

        def step(self, actions: dict[str, Any]) -> Any:
            found = {agent: self.own.step(action) for agent, action in actions.items()}
            self.agents = []
            return tuple({agent: values[at] for agent, values in found.items()} for at in range(5))

    games = Games(Both, 1, {}, None, "both")
    games.reset(seed=[0])
    _, reward, _, _, _ = games.step(games.decisions.actions(np.array([[1, 0.5], [0, 0.5]], np.float32)))
    assert reward.tolist() == [1.0, 0.0]
