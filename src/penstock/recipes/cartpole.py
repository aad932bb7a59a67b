"""Balancing a pole: PPO or IMPALA in environments that gymnasium steps as one array; seconds on one CPU core."""

from __future__ import annotations

from typing import Any

from penstock.algos.entropy import EntropyBonus
from penstock.algos.ppo import PPO
from penstock.config.keeping import CheckpointSpec
from penstock.config.learner import LearnerSpec
from penstock.config.optimizers import AdamW
from penstock.config.run import Run
from penstock.control.stage import Control, EnvironmentsSpec, Episodes, PolicyNetwork, impala
from penstock.core.errors import SpecError

SETTINGS: dict[str, dict[str, Any]] = {
    "ppo": {
        "algorithm": PPO(discount=0.98, lam=0.95, value_clip=0.0, value_coefficient=0.1),
        "learner": LearnerSpec(learning_rate=6e-3, clip_norm=0.5, token_budget=65536),
        "epochs": 2,
    },
    # Without a clip a fragment serves for one pass, and the policy needs a bonus to keep exploring.
    "impala": {
        "algorithm": impala(discount=0.98, value_coefficient=0.02, entropy=EntropyBonus(coefficient=0.1)),
        "learner": LearnerSpec(
            learning_rate=2e-3, clip_norm=0.5, token_budget=65536, optimizer=AdamW(betas=(0.9, 0.999), epsilon=1e-5)
        ),
        "epochs": 1,
    },
}


def cartpole(seed: int = 0, steps: int = 400, algorithm: str = "ppo") -> Run:
    """CartPole-v1 (gymnasium) until the mean return of 100 episodes is 475; seconds on one CPU core.

    Args:
        seed: seed of weights, environments and decisions.
        steps: training batches at most.
        algorithm: ppo (generalised advantages) or impala (V-trace).
    """
    if algorithm not in SETTINGS:
        raise SpecError(f"algorithm={algorithm}: cartpole is trained by {' or '.join(SETTINGS)}")
    stage = Control(
        name="control",
        environments=EnvironmentsSpec(id="CartPole-v1", count=256 if algorithm == "ppo" else 128),
        model=PolicyNetwork(hidden=(64, 64), activation="relu"),
        fragment=32,
        steps=steps,
        solved=475.0,
        evaluation=Episodes(episodes=100),
        **SETTINGS[algorithm],
    )
    return Run(
        name="cartpole",
        seed=seed,
        device="cpu",
        threads=1,
        stages=(stage,),
        checkpoint=CheckpointSpec(every=0),
        headline="return {first[evaluation/reward]:.0f} → {last[evaluation/reward]:.0f} in {seconds:.1f} s",
    )
