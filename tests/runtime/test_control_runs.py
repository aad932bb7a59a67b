"""Control stages carried out by ``launch``: they learn, go on where they were, and start from one another."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from small_runs import run_of, told

pytest.importorskip("gymnasium")

import control_examples as examples
from penstock.algos.ppo import PPO
from penstock.cli.explanation import explain
from penstock.config.keeping import CheckpointSpec
from penstock.config.learner import LearnerSpec
from penstock.config.run import Run
from penstock.control.stage import Control, EnvironmentsSpec, Episodes, PolicyNetwork, impala
from penstock.core.errors import SpecError
from penstock.recipes.cartpole import cartpole
from penstock.runtime import launch
from penstock.runtime.build import Models
from penstock.runtime.folder import RunFolder
from penstock.runtime.stages import prepare


def a_run(steps: int = 4, **fields: Any) -> Run:
    usual: dict[str, Any] = {
        "environments": EnvironmentsSpec(id="CartPole-v1", count=8),
        "model": PolicyNetwork(hidden=(16,)),
        "fragment": 16,
        "minibatches": 2,
        "epochs": 2,
        "evaluation": Episodes(episodes=4, longest=50),
    }
    return run_of(Control(name="control", steps=steps, **(usual | fields)), checkpoint=CheckpointSpec(every=2))


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model" / "model.safetensors")


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], atol: float = 0.0) -> bool:
    return all(torch.allclose(one[name], other[name], rtol=atol, atol=atol) for name in one)


REMEMBERS, SEPARATE = PolicyNetwork(hidden=(16,), memory=8), PolicyNetwork(hidden=(16,), critic="separate")
COUNTING = EnvironmentsSpec(id=f"{examples.__file__}:counting", count=4, options={"truncates": True})
STAGES: dict[str, dict[str, Any]] = {
    "ppo": {},
    "impala": {"algorithm": impala()},
    "memory": {"model": REMEMBERS},
    "memory and v-trace": {"model": REMEMBERS, "algorithm": impala()},
    "continuous": {"environments": EnvironmentsSpec(id="Pendulum-v1", count=4), "model": SEPARATE},
    "own environment": {"environments": COUNTING},
}


@pytest.mark.parametrize("fields", STAGES.values(), ids=STAGES)
def test_a_stage_trains_evaluates_and_saves_its_policy(fields: dict[str, Any], tmp_path: Path) -> None:
    result = launch(a_run(2, **fields), tmp_path / "run")
    last = result.metrics[-2]["values"]
    assert {"policy/loss", "value/loss", "gradient_norm", "environment/steps", "steps_per_second"} <= last.keys()
    assert "evaluation/reward" in result.metrics[-1]["values"]
    assert all(torch.isfinite(tensor).all() for tensor in weights(tmp_path / "run").values())


def test_a_run_is_a_function_of_its_seed(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        launch(replace(a_run(1), seed=seed), tmp_path / name)
    assert same(weights(tmp_path / "a"), weights(tmp_path / "b"))
    assert not same(weights(tmp_path / "a"), weights(tmp_path / "c"))


def test_micro_batches_leave_the_weights_as_they_are(tmp_path: Path) -> None:
    """A budget of a quarter of the minibatch: sums in another order, and nothing else."""
    for name, budget in (("whole", 4096), ("cut", 16)):
        launch(a_run(1, learner=LearnerSpec(learning_rate=1e-3, token_budget=budget)), tmp_path / name)
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "cut"), atol=1e-5)


def test_v_trace_of_an_on_policy_batch_is_gae_with_lam_1_without_whitening(tmp_path: Path) -> None:
    """One optimizer step on fresh fragments: every ratio is 1, and both are the n-step return less the value."""
    shared: dict[str, Any] = {"discount": 0.9, "lam": 1.0, "whiten": False, "value_clip": 0.0}
    for name in ("gae", "vtrace"):
        launch(a_run(1, epochs=1, minibatches=1, algorithm=PPO(estimator=name, **shared)), tmp_path / name)
    assert same(weights(tmp_path / "gae"), weights(tmp_path / "vtrace"), atol=1e-5)


def test_a_run_that_was_stopped_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    def stop_after_3(event: dict[str, Any]) -> None:
        if event["kind"] == "metrics" and event["step"] == 3 and "loss" in event["values"]:
            os.kill(os.getpid(), signal.SIGTERM)

    run = replace(a_run(80), checkpoint=CheckpointSpec(every=20))
    with pytest.raises(KeyboardInterrupt, match="everything is saved"):
        launch(run, tmp_path / "run", [stop_after_3])
    stopped = told(tmp_path / "run", kind="metrics")[-1]["step"]
    result = launch(run, tmp_path / "run", resume=True)
    steps = [event["step"] for event in result.metrics if "loss" in event["values"]]
    assert steps == list(range(1, 81))
    assert stopped < 80
    counted = [event["values"]["environment/steps"] for event in result.metrics if "loss" in event["values"]]
    assert counted == sorted(counted)


def test_a_run_that_was_killed_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "run"
    words = ["train", "cartpole", "--steps", "150", "--control.solved", "null", "--control.environments.count", "16"]
    words += ["--checkpoint.every", "5", "--name", "run"]
    command = [sys.executable, "-m", "penstock.cli.main", *words, "--runs", str(tmp_path / "runs")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not ((folder / "events.jsonl").exists() and told(folder, what="checkpoint")) and process.poll() is None:
            time.sleep(0.05)
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()
    run = RunFolder(folder).read()
    result = launch(run, folder, resume=True)
    steps = [event["step"] for event in result.metrics if "loss" in event["values"]]
    assert steps == list(range(1, 151))
    assert len(told(folder, kind="lifecycle", what="resumed")) == 1


def test_a_stage_starts_from_the_policy_of_an_earlier_one(tmp_path: Path) -> None:
    run = a_run(1)
    second = replace(run.stages[0], name="more", model=PolicyNetwork(path="@control"), learner=LearnerSpec(learning_rate=1e-30))
    launch(replace(run, stages=(run.stages[0], second)), tmp_path / "run")
    first = load_file(tmp_path / "run" / "models" / "control" / "model.safetensors")
    assert same(first, weights(tmp_path / "run"))


def test_a_policy_of_another_environment_is_refused(tmp_path: Path) -> None:
    launch(a_run(1), tmp_path / "run")
    environments = EnvironmentsSpec(id="Pendulum-v1", count=8)
    other = a_run(1, environments=environments, model=PolicyNetwork(path=str(tmp_path / "run" / "model")))
    with pytest.raises(SpecError, match="made for 4 numbers seen"):
        launch(other, tmp_path / "other")


def test_lag_needs_actors_in_processes(tmp_path: Path) -> None:
    run = a_run()
    with pytest.raises(SpecError, match="max_lag=1 needs actors in processes of their own; set runtime=procs or ray"):
        prepare(replace(run.stages[0], max_lag=1), run, Models(lambda name: tmp_path, "cpu", 0), tmp_path)


def test_explain_says_what_a_stage_steps_and_trains() -> None:
    said = "\n".join(explain(a_run()))
    assert "16 steps × 8 environments = 128 steps" in said
    assert "8 × CartPole-v1" in said


def test_the_recipe_learns_within_a_few_batches(tmp_path: Path) -> None:
    result = launch(cartpole(steps=25), tmp_path / "run")
    returns = [event["values"]["reward/mean"] for event in result.metrics if "reward/mean" in event["values"]]
    assert returns[-1] > 3 * returns[0]
    with pytest.raises(SpecError, match="ppo or impala"):
        cartpole(algorithm="dqn")
