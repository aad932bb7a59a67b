"""Replay: rings, sum trees, transitions of fragments, and stages that learn from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("gymnasium")

from stage_examples import a_policy, a_stage, collected, launched, reported, stopped_and_resumed

import control_examples as examples
from penstock.algos.off_policy import DQN, SAC
from penstock.config.learner import LearnerSpec
from penstock.control.environments import Environments
from penstock.control.preparing import learning
from penstock.control.replay import Replay, SumTree, transitions
from penstock.control.stage import Control, EnvironmentsSpec, Interface, PolicyNetwork
from penstock.core.errors import CheckpointError, SpecError
from penstock.models.control import load_policy
from penstock.models.control_networks import Noisy


def test_a_number_falls_in_the_leaf_of_its_part_of_the_whole_by_hand() -> None:
    tree = SumTree(5)
    tree.set(np.arange(5), np.array([1.0, 0.0, 2.0, 3.0, 4.0]))
    assert tree.total == 10
    assert tree.find(np.array([0.0, 0.99, 1.0, 2.99, 3.0, 5.99, 6.0, 9.99])).tolist() == [0, 0, 2, 2, 3, 3, 4, 4]
    tree.set(np.array([4]), np.array([0.5]))
    assert tree.total == 6.5


@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=40), st.lists(st.floats(0, 0.999), min_size=1, max_size=20))
def test_finding_is_that_of_a_running_sum(priorities: list[float], shares: list[float]) -> None:
    tree, values = SumTree(len(priorities)), np.array(priorities)
    tree.set(np.arange(len(values)), values)
    wanted = np.array(shares) * tree.total
    found = tree.find(wanted)
    ends = np.cumsum(values)
    assert (wanted <= ends[found] + 1e-9).all()
    assert (wanted >= ends[found] - values[found] - 1e-9).all()


def test_the_oldest_transitions_are_overwritten_and_no_more_are_kept_than_there_is_room_for() -> None:
    replay = Replay(4)
    replay.add({"x": np.arange(3)})
    replay.add({"x": np.arange(3, 6)})
    assert (replay.size, replay.added) == (4, 6)
    assert sorted(replay.taken(np.arange(4))["x"].tolist()) == [2, 3, 4, 5]


def test_transitions_are_sampled_in_proportion_to_their_priority_and_weighted_against_it() -> None:
    replay = Replay(4, priority=1.0)
    replay.add({"x": np.arange(4)})
    replay.judge(np.arange(4), np.array([1.0, 1.0, 2.0, 4.0], np.float32))
    at, weight = replay.sampled(8000, np.random.default_rng(0), correction=1.0)
    shares = np.bincount(at) / 8000
    np.testing.assert_allclose(shares, [0.125, 0.125, 0.25, 0.5], atol=0.01)
    assert dict(zip(at.tolist(), weight.round(4).tolist(), strict=True)) == {0: 1.0, 1: 1.0, 2: 0.5, 3: 0.25}


@pytest.mark.parametrize("priority", [0.0, 0.6])
def test_what_is_kept_is_saved_and_comes_back(priority: float) -> None:
    first, second = Replay(5, priority), Replay(5, priority)
    first.add({"x": np.arange(4.0), "y": np.ones((4, 2), np.float32)})
    first.add({"x": np.arange(4.0), "y": np.zeros((4, 2), np.float32)})
    first.judge(np.array([0, 3]), np.array([2.0, 5.0], np.float32))
    second.load_state(first.state())
    assert np.array_equal(first.columns["y"], second.columns["y"])
    for replay in (first, second):
        replay.add({"x": np.array([9.0]), "y": np.ones((1, 2), np.float32)})
    assert np.array_equal(first.columns["x"], second.columns["x"])
    both = [replay.sampled(50, np.random.default_rng(1), 0.5) for replay in (first, second)]
    assert np.array_equal(both[0][0], both[1][0])
    with pytest.raises(CheckpointError, match="another capacity"):
        Replay(3, priority).load_state(first.state())


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
@pytest.mark.parametrize("truncates", [False, True])
def test_transitions_lead_to_the_true_next_observation_in_every_mode(mode: str, truncates: bool) -> None:
    """Step t shows t and rewards t + 1; an episode is 4 steps, so 2-step returns from step t are t + 1 + (t + 2) / 2."""
    spec = EnvironmentsSpec(id=f"{examples.__file__}:counting_vector", count=3, options={"mode": mode, "truncates": truncates})
    made = Environments(spec, 0)
    found = collected(made, 12)
    kept = transitions(found, 0.5, 2)
    at, following = kept["observation"][:, 0], kept["next"][:, 0]
    whole = kept["discount"] == 0.25  # two steps, and the episode goes on, or was cut
    assert (following[whole] == at[whole] + 2).all()
    assert (kept["return"][whole] == at[whole] + 1 + (at[whole] + 2) / 2).all()
    over = kept["discount"] == 0
    assert over.any() != truncates
    assert (following[over] == 4).all()
    short = kept["discount"] == 0.5
    assert (following[short] == at[short] + 1).all()
    assert (kept["return"][short] == at[short] + 1).all()
    assert len(at) == found.acted_TN.sum()


def replaying(algorithm: Any, id: str = "CartPole-v1", **fields: Any) -> Control:
    return a_stage(**{"algorithm": algorithm, "environments": EnvironmentsSpec(id=id, count=4), "epochs": 1} | fields)


SMALL: dict[str, Any] = {"batch": 16, "warmup": 64, "capacity": 100}


@pytest.mark.parametrize(
    "algorithm",
    [
        DQN(**SMALL, n_steps=3, priority=0.6),
        DQN(**SMALL, double=False, dueling=False),
        DQN(**SMALL, quantiles=5, priority=0.6),
        DQN(**SMALL, quantiles=5, double=False, dueling=False),
        DQN(**SMALL, quantiles=5, n_steps=3, priority=0.6, noisy=0.5, explore_first=0.0, explore_last=0.0),
        SAC(**SMALL),
        SAC(**SMALL, priority=0.5, n_steps=2),
    ],
)
def test_a_stage_learns_from_replay_and_saves_a_policy_that_acts(algorithm: Any, tmp_path: Path) -> None:
    id = "Pendulum-v1" if isinstance(algorithm, SAC) else "CartPole-v1"
    result = launched(replaying(algorithm, id, steps=5), tmp_path)
    last = [event["values"] for event in result.metrics if "replay/size" in event["values"]][-1]
    assert last["replay/size"] == 100
    assert {"q/mean", "gradient_norm"} <= last.keys()
    policy = load_policy(tmp_path / "run" / "model")
    shape = policy.network.shape
    assert shape.kind == ("soft" if isinstance(algorithm, SAC) else "dueling" if algorithm.dueling else "q")
    _, decision, _ = policy.step(torch.zeros(2, shape.observation), policy.first_state(2), None)
    assert decision.shape == (2, 1)


def test_a_resumed_run_has_the_transitions_and_targets_of_its_checkpoint(tmp_path: Path) -> None:
    stage = replaying(DQN(**SMALL | {"capacity": 5000}, priority=0.6), steps=30)
    sizes = reported(stopped_and_resumed(stage, tmp_path / "run"), "replay/size")
    grown = np.diff([0.0, *sizes])  # a pole that has fallen only resets in its next step, which is not kept
    assert len(grown) == 30
    assert ((grown > 20) & (grown <= 32)).all()


def test_a_target_network_follows_by_its_share_of_the_way() -> None:
    policy = learning(replaying(DQN(**SMALL, target_rate=0.25, target_every=2)), a_policy(4, (2,), kind="dueling"), 0)
    before = policy.target.decide.weight.clone()
    with torch.no_grad():
        policy.network.decide.weight.add_(4.0)
    policy.stepped(1)
    assert torch.equal(policy.target.decide.weight, before)
    policy.stepped(2)
    assert torch.allclose(policy.target.decide.weight, before + 1.0)


def test_a_noisy_layer_by_hand() -> None:
    """Factorised noise: weights 1 and 2 with deviation 3 / √2 each, noise 4 and 9 of the inputs and -1 of the output."""
    layer = Noisy(torch.nn.Linear(2, 1), 3.0)
    with torch.no_grad():
        layer.mean.weight.copy_(torch.tensor([[1.0, 2.0]]))
        layer.mean.bias.zero_()
    numbers = torch.tensor([[1.0, 1.0]])
    assert layer(numbers).item() == 3.0
    layer.noise_BK = torch.tensor([[4.0, 9.0, -1.0]])
    assert layer(numbers).item() == pytest.approx(3.0 - 3 / 2**0.5 * (2 + 3 + 1))


def test_noisy_layers_decide_by_noise_of_each_row_and_without_it_by_their_means() -> None:
    policy = learning(replaying(DQN(**SMALL, noisy=0.5)), a_policy(4, (2,), kind="dueling", noisy=0.5), 0)
    noise = policy.decisions.noise(1, 3, torch.Generator().manual_seed(0))[0]
    assert noise.shape == (3, 2 + (4 + 4) + (4 + 2) + (4 + 1))
    noise[1:, 2:] = 0
    shown, state = torch.ones(3, 4), policy.first_state(3)
    still, shaken = policy.step(shown, state, None)[0], policy.step(shown, state, noise)[0]
    assert torch.equal(still[1:], shaken[1:])
    assert not torch.equal(still[0], shaken[0])
    assert torch.equal(still, policy.step(shown, state, None)[0])


def test_a_squashed_log_prob_is_the_density_of_the_decision() -> None:
    """Against torch's transformed normal."""
    policy = a_policy(3, continuous=2, kind="soft")
    generator = torch.Generator().manual_seed(0)
    numbers, noise = (torch.randn(5, width, generator=generator, dtype=torch.float64) for width in (4, 2))
    decision, logp = policy.decisions.squashed(numbers, noise)
    mean, log = numbers.chunk(2, -1)
    squash = torch.distributions.transforms.TanhTransform(cache_size=1)
    density = torch.distributions.TransformedDistribution(torch.distributions.Normal(mean, log.clamp(-5, 2).exp()), [squash])
    assert torch.allclose(logp, density.log_prob(decision).sum(-1), atol=1e-4)


def test_squashed_decisions_reach_the_bounds_of_the_environment() -> None:
    made = Environments(EnvironmentsSpec(id="Pendulum-v1", count=2), 0, interface=Interface(squashed=True))
    assert made.decisions.actions(np.array([[-1.0], [0.5]], np.float32)).tolist() == [[-2.0], [1.0]]


@pytest.mark.parametrize(
    ("algorithm", "fields", "words"),
    [
        (DQN(**SMALL), {"model": PolicyNetwork(memory=8)}, "model.memory has no meaning for DQN"),
        (DQN(**SMALL), {"scale_rewards": True}, "scale_rewards"),
        (DQN(**SMALL, n_steps=9), {}, "n_steps=9 does not fit"),
        (SAC(**SMALL), {"environments": EnvironmentsSpec(id="Pendulum-v1", count=64)}, "capacity=100"),
    ],
)
def test_what_has_no_meaning_with_replay_is_refused(algorithm: Any, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        replaying(algorithm, "Pendulum-v1", **fields)


@pytest.mark.parametrize(
    ("algorithm", "id", "words"),
    [(SAC(**SMALL), "CartPole-v1", "SAC decides in continuous"), (DQN(**SMALL), "Pendulum-v1", "DQN chooses among options")],
)
def test_environments_that_an_algorithm_cannot_act_in_are_refused(algorithm: Any, id: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=words):
        launched(replaying(algorithm, id), tmp_path)


def test_quantiles_of_a_coin_are_its_two_sides_and_their_mean_decides(tmp_path: Path) -> None:
    """Option 0 is worth 0 or 1 alike, option 1 always 0.3: the mean of the first is larger."""
    fields: dict[str, Any] = {"batch": 32, "discount": 0.5, "dueling": False, "explore_last": 0.5, "explore_batches": 1}
    algorithm = DQN(**SMALL | fields, quantiles=4)
    model, fast = PolicyNetwork(hidden=(16,)), LearnerSpec(learning_rate=1e-2)
    launched(replaying(algorithm, f"{examples.__file__}:coin", model=model, learner=fast, steps=100), tmp_path)
    policy = load_policy(tmp_path / "run" / "model")
    with torch.no_grad():
        coin, sure = policy.network.quantiles(torch.ones(1, 1))[0].sort(-1).values
    assert coin[0].item() == pytest.approx(0.0, abs=0.2)
    assert coin[3].item() == pytest.approx(1.0, abs=0.2)
    assert sure.tolist() == pytest.approx([0.3] * 4, abs=0.1)
    assert policy.network(torch.ones(1, 1))[0].argmax().item() == 0
