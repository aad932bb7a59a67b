"""Small control stages and runs of them, what runs report, and actors with small policies."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from penstock.algos.ppo import PPO
from penstock.config.keeping import CheckpointSpec
from penstock.config.run import Run
from penstock.control.actor import Actor
from penstock.control.environments import Environments
from penstock.control.fragments import Fragment
from penstock.control.stage import Control, EnvironmentsSpec, Episodes, PolicyNetwork
from penstock.models.control import ControlPolicy, Shape, new_policy
from penstock.runtime import launch


def a_policy(*sizes: Any, **shape: Any) -> ControlPolicy:
    """A policy of four hidden numbers."""
    return new_policy(Shape(*sizes, **({"hidden": (4,)} | shape)), 0, "cpu")


def an_actor(made: Environments, steps: int, seed: int = 0, **shape: Any) -> Actor:
    """An actor with a small policy that fits the environments."""
    return Actor(made, a_policy(made.numbers, made.choices, made.continuous, **shape), steps, seed)


def collected(made: Environments, steps: int) -> Fragment:
    return an_actor(made, steps).collect(0)


def usual(**fields: Any) -> dict[str, Any]:
    """Fields of a small stage."""
    return {
        "name": "control",
        "environments": EnvironmentsSpec(id="CartPole-v1", count=8),
        "model": PolicyNetwork(hidden=(8,)),
        "algorithm": PPO(discount=0.9, value_clip=0.0),
        "fragment": 8,
        "minibatches": 2,
        "steps": 2,
        "evaluation": Episodes(episodes=2, longest=20),
    } | fields


def a_stage(**fields: Any) -> Control:
    return Control(**usual(**fields))


def a_run(stage: Any, **fields: Any) -> Run:
    return Run(name="run", stages=(stage,), device="cpu", threads=1, **fields)


def launched(stage: Any, tmp_path: Path) -> Any:
    """The result of a run of one stage, whose folder is ``tmp_path / "run"``."""
    return launch(a_run(stage), tmp_path / "run")


def reported(result: Any, name: str = "reward/mean") -> list[float]:
    """A metric, each time it was reported."""
    return [event["values"][name] for event in result.metrics if name in event["values"]]


def stopped_and_resumed(stage: Any, folder: Path) -> Any:
    """The result of a run that was told to stop after its third batch and went on from there."""

    def stop(event: dict[str, Any]) -> None:
        if event["kind"] == "metrics" and event["step"] == 3 and "loss" in event["values"]:
            os.kill(os.getpid(), signal.SIGTERM)

    run = a_run(stage, checkpoint=CheckpointSpec(every=20))
    with pytest.raises(KeyboardInterrupt, match="everything is saved"):
        launch(run, folder, [stop])
    return launch(run, folder, resume=True)
