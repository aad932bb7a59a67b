"""Environments and the actor: every way of gymnasium to go on after an episode gives the same steps; ends are told apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

gymnasium = pytest.importorskip("gymnasium")

from stage_examples import an_actor  # noqa: E402

import control_examples as examples  # noqa: E402
from penstock.control.environments import Environments  # noqa: E402
from penstock.control.episodes import EpisodeLog, played  # noqa: E402
from penstock.control.fragments import Fragment  # noqa: E402
from penstock.control.stage import EnvironmentsSpec  # noqa: E402
from penstock.core.errors import SpecError  # noqa: E402
from penstock.data.resolve import register  # noqa: E402

MODES = ("NextStep", "SameStep", "Disabled")


def spec(function: str, count: int = 3, **options: Any) -> EnvironmentsSpec:
    return EnvironmentsSpec(id=f"{examples.__file__}:{function}", count=count, options=options)


def fragment(mode: str, truncates: bool = False) -> Fragment:
    return an_actor(Environments(spec("counting_vector", mode=mode, truncates=truncates), 0), 12).collect(7)


@pytest.mark.parametrize("mode", MODES)
def test_every_autoreset_mode_gives_the_same_steps(mode: str) -> None:
    """What was acted on, in order, environment by environment: 0 1 2 3 | 0 1 2 3 | …, the first episode begun later."""
    found = fragment(mode)
    for index in range(3):
        acted = found.acted_TN[:, index]
        shown = found.observation_TNF[acted, index, 0]
        expected = [step % examples.LONG for step in range(index, index + len(shown))]
        assert shown.tolist() == expected
        assert found.reward_TN[acted, index].tolist() == [step + 1 for step in expected]
    assert bool(found.acted_TN.all()) == (mode != "NextStep")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("truncates", [False, True])
def test_ends_keep_the_true_last_observation_and_how_it_ended(mode: str, truncates: bool) -> None:
    found = fragment(mode, truncates=truncates)
    ends = found.ends
    over = ends.terminated_K | ends.truncated_K
    assert over.sum() >= 6
    assert set(ends.observation_KF[over, 0].tolist()) == {float(examples.LONG)}
    assert bool(ends.truncated_K[over].all()) == truncates
    assert bool(ends.terminated_K[over].all()) != truncates
    assert (found.reward_TN[ends.step_K[over], ends.environment_K[over]] == examples.LONG).all()
    assert (found.following_K[ends.terminated_K] == 0).all()
    assert (found.following_K[~ends.terminated_K] != 0).all()


@pytest.mark.parametrize("mode", MODES)
def test_an_episode_starts_where_the_last_one_is_over(mode: str) -> None:
    found = fragment(mode)
    begins = (found.observation_TNF[..., 0] == 0) | (np.arange(12) == 0)[:, None]
    assert np.array_equal(found.start_TN, begins)


def test_values_follow_within_an_episode_alone() -> None:
    found = fragment("SameStep")
    value = np.arange(36, dtype=np.float32).reshape(12, 3)
    following = found.following(value, np.full(len(found.ends.step_K), -1, np.float32))
    over = np.zeros((12, 3), bool)
    over[found.ends.step_K[found.ends.terminated_K], found.ends.environment_K[found.ends.terminated_K]] = True
    assert (following[over] == 0).all()
    assert (following[-1][~over[-1]] == -1).all()
    assert np.array_equal(following[:-1][~over[:-1]], value[1:][~over[:-1]])
    assert (found.version_TN == 7).all()


def test_log_probs_and_values_of_a_fragment_are_those_that_the_policy_computes_again() -> None:
    from penstock.control.learning import row_of

    actor = an_actor(Environments(spec("counting_vector", mode="NextStep"), 0), 12, memory=4)
    actor.collect(0)
    found = actor.collect(1)  # its first state is not zero
    assert np.abs(found.state_NS).sum() > 0
    (batch,) = actor.policy.lay_out([(row_of(found, True, {}),)], 99)
    outputs = actor.policy.outputs(batch, frozenset({"logp", "value"}))
    np.testing.assert_allclose(outputs["logp"].detach().numpy(), found.logp_TN[found.acted_TN], atol=1e-6)
    np.testing.assert_allclose(outputs["value"].detach().numpy(), found.value_TN[found.acted_TN], atol=1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_returns_and_lengths_span_fragments(mode: str) -> None:
    actor = an_actor(Environments(spec("counting_vector", count=1, mode=mode), 0), 3)
    log, returns = EpisodeLog(1), []
    for version in range(8):
        returns += [log.read(actor.collect(version)).get("reward/mean", 0.0)]
    assert set(returns) == {0.0, 1.0 + 2 + 3 + 4}
    assert set(log.recent) == {10.0}


def test_single_environments_have_seeds_of_their_own_and_a_function_makes_them() -> None:
    found = Environments(spec("counting", count=8), 3).observation_NF[:, 1]
    assert len(set(found.tolist())) == 8
    assert np.array_equal(found, Environments(spec("counting", count=8), 3).observation_NF[:, 1])
    assert not set(found.tolist()) & set(Environments(spec("counting", count=8), 4).observation_NF[:, 1].tolist())


def test_an_episode_of_every_environment_is_played_by_the_most_likely_decisions() -> None:
    environments = Environments(spec("counting", truncates=True), 0)
    return_n, length_n = played(an_actor(environments, 1).policy, environments, 100)
    assert return_n.tolist() == [10.0] * 3
    assert length_n.tolist() == [4] * 3
    environments.reset(0)
    assert played(an_actor(environments, 1).policy, environments, 2)[1].tolist() == [2] * 3


def test_continuous_decisions_are_cut_to_the_bounds_of_the_environment() -> None:
    environments = Environments(EnvironmentsSpec(id="Pendulum-v1", count=2), 0)
    assert environments.continuous == 1
    assert environments.decisions.actions(np.array([[-9.0], [0.5]], np.float32)).tolist() == [[-2.0], [0.5]]


def test_a_discrete_observation_is_shown_as_one_number_a_value() -> None:
    environments = Environments(EnvironmentsSpec(id="CliffWalking-v1", count=2), 0)
    assert environments.numbers == 48
    assert environments.observation_NF.sum(1).tolist() == [1, 1]


@pytest.mark.parametrize(
    ("function", "options", "words"),
    [
        ("no_vector", {}, "returned int"),
        ("missing", {}, 'no "missing"'),
    ],
)
def test_what_control_does_not_know_is_refused_by_name(function: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        Environments(spec(function, **options), 0)


def test_an_unknown_environment_is_refused_in_one_line() -> None:
    with pytest.raises(SpecError, match=r"environments.id=CartPolle-v1") as caught:
        Environments(EnvironmentsSpec(id="CartPolle-v1"), 0)
    assert "\n" not in str(caught.value)


class Training(examples.Counting):
    """Trains a number of its own at each step."""

    def step(self, action: Any) -> Any:
        weight = torch.ones(1, requires_grad=True)
        (weight * 2).sum().backward()
        assert weight.grad is not None
        return super().step(action)


def test_an_environment_may_train_a_network_of_its_own() -> None:
    made = Environments(EnvironmentsSpec(id=register(Training), count=2), 0)
    actor = an_actor(made, 6)
    assert actor.collect(0).reward_TN.shape == (6, 2)
    return_N, _ = played(actor.policy, made, 10)
    assert return_N.shape == (2,)


def test_a_robot_of_gymnasium_is_stepped() -> None:
    """It imports more than mujoco: the extra has to bring that too."""
    pytest.importorskip("mujoco")
    made = Environments(EnvironmentsSpec(id="HalfCheetah-v5", count=2), 0)
    assert (made.numbers, made.continuous) == (17, 6)
    assert an_actor(made, 4).collect(0).reward_TN.shape == (4, 2)
