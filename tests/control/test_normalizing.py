"""Moments in the policy: they move between batches, are saved with it, change no reported return. Images are learned from."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("gymnasium")

import control_examples as examples
from penstock.algos.off_policy import SAC
from penstock.config.keeping import CheckpointSpec
from penstock.config.learner import LearnerSpec
from penstock.config.run import Run
from penstock.control.actor import Actor
from penstock.control.environments import Environments
from penstock.control.normalizing import Normalizing
from penstock.control.stage import Control, EnvironmentsSpec, Episodes, PolicyNetwork
from penstock.core.errors import SpecError
from penstock.models.control import ControlPolicy, Shape, load_policy, new_policy, save_policy
from penstock.runtime import launch


def collected(steps: int = 12) -> tuple[ControlPolicy, Any]:
    spec = EnvironmentsSpec(id=f"{examples.__file__}:counting_vector", count=3, options={"mode": "NextStep"})
    made = Environments(spec, 0)
    policy = new_policy(Shape(1, (2,), hidden=(4,), normalize=True), 0, "cpu")
    return policy, Actor(made, policy, steps, 0).collect(0)


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
    again = Normalizing(new_policy(Shape(1, (2,), hidden=(4,)), 0, "cpu"), 0.5, True)
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


def a_run(steps: int, **fields: Any) -> Run:
    usual: dict[str, Any] = {"environments": EnvironmentsSpec(id="CartPole-v1", count=8), "fragment": 16, "epochs": 1}
    usual |= {"model": PolicyNetwork(hidden=(16,), normalize=True), "scale_rewards": True}
    stage = Control(name="control", steps=steps, evaluation=Episodes(episodes=2, longest=20), **(usual | fields))
    return Run(name="run", stages=(stage,), device="cpu", threads=1, checkpoint=CheckpointSpec(every=20))


def test_moments_go_on_where_they_were_after_a_resume(tmp_path: Path) -> None:
    def stop_after_3(event: dict[str, Any]) -> None:
        if event["kind"] == "metrics" and event["step"] == 3 and "loss" in event["values"]:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        launch(a_run(40), tmp_path / "run", [stop_after_3])
    launch(a_run(40), tmp_path / "run", resume=True)
    network = load_policy(tmp_path / "run" / "model").network
    assert network.normal is not None
    acted = float(network.normal.count)
    assert 40 * 16 * 8 * 0.8 < acted <= 40 * 16 * 8  # a pole that has fallen only resets in its next step
    assert float(network.rewards.count) == acted


def test_scaled_rewards_leave_reported_returns_as_they_are(tmp_path: Path) -> None:
    for name, scale in (("plain", False), ("scaled", True)):
        result = launch(a_run(1, scale_rewards=scale), tmp_path / name)
        found = next(event["values"] for event in result.metrics if "reward/mean" in event["values"])
        assert found["reward/mean"] == found["episode/length"]


def test_a_stage_learns_from_images(tmp_path: Path) -> None:
    """An image is bright or dark, and the option that says so is worth 1: half of 4 at first, nearly all in the end."""
    fields: dict[str, Any] = {"environments": EnvironmentsSpec(id=f"{examples.__file__}:bright", count=16)}
    fields |= {
        "model": PolicyNetwork(hidden=(16,), activation="relu", convolutions=((4, 3, 2),)),
        "scale_rewards": False,
        "epochs": 4,
    }
    result = launch(a_run(16, learner=LearnerSpec(learning_rate=1e-2), **fields), tmp_path / "run")
    returns = [event["values"]["reward/mean"] for event in result.metrics if "reward/mean" in event["values"]]
    assert returns[0] < 2.6
    assert returns[-1] > 3.2
    shape = load_policy(tmp_path / "run" / "model").network.shape
    assert (shape.image, shape.convolutions) == ((3, 8, 8), ((4, 3, 2),))


def test_a_stage_learns_what_an_image_and_a_number_say_together(tmp_path: Path) -> None:
    """The image alone, or the number, is worth 3 of 4."""
    fields: dict[str, Any] = {"id": f"{examples.__file__}:bright", "count": 16, "options": {"turns": True}}
    model = PolicyNetwork(hidden=(32,), activation="relu", convolutions=((4, 3, 2),))
    given = {"environments": EnvironmentsSpec(**fields), "model": model, "epochs": 4, "scale_rewards": False}
    result = launch(a_run(40, learner=LearnerSpec(learning_rate=1e-2), **given), tmp_path / "run")
    returns = [event["values"]["reward/mean"] for event in result.metrics if "reward/mean" in event["values"]]
    assert returns[0] < 2.6
    assert returns[-1] > 3.4


def test_a_soft_actor_learns_from_images(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"id": f"{examples.__file__}:bright", "count": 8, "options": {"smooth": True}}
    model = PolicyNetwork(hidden=(32,), activation="relu", convolutions=((4, 3, 2),))
    algorithm = SAC(batch=64, warmup=128, capacity=4000, discount=0.5, temperature=0.1)
    given = {"environments": EnvironmentsSpec(**fields), "model": model, "algorithm": algorithm, "scale_rewards": False}
    result = launch(a_run(40, learner=LearnerSpec(learning_rate=3e-3), minibatches=16, **given), tmp_path / "run")
    rewards = [event["values"]["evaluation/reward"] for event in result.metrics if "evaluation/reward" in event["values"]]
    assert rewards[0] < 2.6
    assert rewards[-1] > 3.2


def test_moments_of_bytes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="bytes of an image"):
        launch(a_run(1, environments=EnvironmentsSpec(id=f"{examples.__file__}:bright", count=4)), tmp_path / "run")
