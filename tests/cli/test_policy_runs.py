"""Runs of policy algorithms with their greedy samples, refills, corrections and controllers, from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_examples import RECIPES, Penstock

CRITIC = ("--grpo.learner.critic", "shared")
RUNS = {
    "remax with dynamic sampling": (
        "ReMax",
        "--grpo.dynamic_sampling",
        "60",
        "--grpo.scaling.by",
        "running",
        "--grpo.scaling.clip",
        "5",
    ),
    "gdpo": ("GDPO",),
    "reinforce++": ("ReinforcePlusPlus", "--grpo.algorithm.kl.coefficient", "0.05"),
    "vtrace": ('{"kind": "PPO", "estimator": "vtrace", "bootstrap": true}', *CRITIC, "--grpo.max_lag", "1"),
    "corrected": (
        '{"kind": "GRPO", "importance_weights": [{"high": 5}], "entropy": {"target": 2.0}, "objective": "ClipCov"}',
        *("--grpo.minibatches", "2", "--grpo.max_lag", "1"),
    ),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_of_it_starts_and_ends(name: str, penstock: Penstock) -> None:
    algorithm, *flags = RUNS[name]
    done = penstock("train", f"{RECIPES}:rewarded", "--grpo.algorithm", algorithm, *flags, "--name", "run")
    assert done.code == 0, done.err
    assert Path("runs/run/model").is_dir()
