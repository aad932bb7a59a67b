"""Moments in the policy: they move between batches, are saved with it, change no reported return. Images are learned from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("gymnasium")

from stage_examples import a_policy, a_stage, an_actor, launched, reported, stopped_and_resumed

import control_examples as examples
from penstock.algos.off_policy import SAC
from penstock.config.learner import LearnerSpec
from penstock.control.environments import Environments
from penstock.control.normalizing import Normalizing
from penstock.control.stage import Control, EnvironmentsSpec, PolicyNetwork
from penstock.core.errors import SpecError
from penstock.models.control import ControlPolicy, load_policy, save_policy


def collected(steps: int = 12) -> tuple[ControlPolicy, Any]:
    spec = EnvironmentsSpec(id=f"{examples.__file__}:counting_vector", count=3, options={"mode": "NextStep"})
    actor = an_actor(Environments(spec, 0), steps, normalize=True)
    return actor.policy, actor.collect(0)


def test_moments_are_those_of_what_was_acted_on() -> None:
    policy, fragment = collected()
    Normalizing(policy, 0.9, False).observe(fragment)
    shown = fragment.observation_TNF[fragment.acted_TN]
    assert policy.network.normal is not None
    count, mean, squares = policy.network.normal.values()
    assert count == len(shown)
    assert mean == pytest.approx(shown.mean())
    assert squares == pytest.approx(shown.var() * len(shown))
    normal = policy.network.normal(torch.from_numpy(shown))
    assert normal.mean().item() == pytest.approx(0, abs=1e-5)
    assert normal.std(correction=0).item() == pytest.approx(1, abs=1e-5)


def test_rewards_are_divided_by_the_deviation_of_discounted_returns_over_fragments() -> None:
    """All in one fragment, or in two: the same moments, because what was earned before is carried over."""
    policy, fragment = collected(24)
    whole = Normalizing(policy, 0.5, True)
    scaled = whole.scaled(fragment)
    deviation = float(policy.network.rewards.squares / policy.network.rewards.count) ** 0.5
    np.testing.assert_allclose(scaled.reward_TN, fragment.reward_TN / deviation, rtol=1e-5)
    again = Normalizing(a_policy(1, (2,)), 0.5, True)
    for part in (slice(0, 9), slice(9, 24)):
        fields = {name: getattr(fragment, name)[part] for name in ("reward_TN", "start_TN", "acted_TN")}
        again.scaled(replace(fragment, **fields))
    assert torch.allclose(again.policy.network.rewards.squares, policy.network.rewards.squares)
    assert torch.equal(again.policy.network.rewards.count, policy.network.rewards.count)


def test_a_loaded_policy_acts_as_the_one_that_was_saved(tmp_path: Path) -> None:
    policy, fragment = collected()
    Normalizing(policy, 0.9, True).observe(fragment)
    save_policy(policy, tmp_path / "model")
    rows = torch.from_numpy(fragment.observation_TNF).flatten(0, 1)
    assert torch.equal(load_policy(tmp_path / "model").network(rows)[0], policy.network(rows)[0])


def normalizing(**fields: Any) -> Control:
    """A stage with moments of observations and of rewards."""
    model = PolicyNetwork(hidden=(16,), normalize=True)
    return a_stage(**{"model": model, "scale_rewards": True, "fragment": 16, "epochs": 1} | fields)


def test_moments_go_on_where_they_were_after_a_resume(tmp_path: Path) -> None:
    stopped_and_resumed(normalizing(steps=30), tmp_path / "run")
    network = load_policy(tmp_path / "run" / "model").network
    assert network.normal is not None
    acted = float(network.normal.count)
    assert 30 * 16 * 8 * 0.8 < acted <= 30 * 16 * 8  # a pole that has fallen only resets in its next step
    assert float(network.rewards.count) == acted


@pytest.mark.parametrize("scale", [False, True], ids=["plain", "scaled"])
def test_scaled_rewards_leave_reported_returns_as_they_are(scale: bool, tmp_path: Path) -> None:
    result = launched(normalizing(steps=1, scale_rewards=scale), tmp_path)
    assert reported(result)[0] == reported(result, "episode/length")[0]


def seeing(count: int, width: int, **options: Any) -> dict[str, Any]:
    """Fields of a stage that sees bright and dark images."""
    model = PolicyNetwork(hidden=(width,), activation="relu", convolutions=((4, 3, 2),))
    return {"environments": EnvironmentsSpec(id=f"{examples.__file__}:bright", count=count, options=options), "model": model}


@pytest.mark.parametrize(
    ("width", "options", "steps", "learned"),
    [(16, {}, 10, 3.2), (32, {"turns": True}, 20, 3.4)],
    ids=["an image", "an image and a number"],
)
def test_a_stage_learns_from_images(width: int, options: dict[str, Any], steps: int, learned: float, tmp_path: Path) -> None:
    """An image is bright or dark, and the option that says so is worth 1: half of 4 at first, nearly all in the end. Where a
    number counts too, the image alone, or the number, is worth 3 of 4."""
    fast = LearnerSpec(learning_rate=2e-2)
    stage = a_stage(**seeing(16, width, **options), fragment=16, minibatches=4, steps=steps, learner=fast)
    returns = reported(launched(stage, tmp_path))
    assert returns[0] < 2.6
    assert returns[-1] > learned
    shape = load_policy(tmp_path / "run" / "model").network.shape
    assert (shape.image, shape.convolutions) == ((3, 8, 8), ((4, 3, 2),))


def test_a_soft_actor_learns_from_images(tmp_path: Path) -> None:
    algorithm = SAC(batch=64, warmup=128, capacity=4000, discount=0.5, temperature=0.1)
    fields: dict[str, Any] = {"algorithm": algorithm, "fragment": 16, "epochs": 1, "minibatches": 16, "steps": 16}
    stage = a_stage(**seeing(8, 32, smooth=True), **fields, learner=LearnerSpec(learning_rate=1e-2))
    rewards = reported(launched(stage, tmp_path), "evaluation/reward")
    assert rewards[0] < 2.6
    assert rewards[-1] > 3.2


def test_moments_of_bytes_are_refused(tmp_path: Path) -> None:
    bright = EnvironmentsSpec(id=f"{examples.__file__}:bright", count=4)
    with pytest.raises(SpecError, match="bytes of an image"):
        launched(normalizing(steps=1, environments=bright), tmp_path)
