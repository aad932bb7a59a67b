"""Balancing a pole: PPO in 128 environments of gymnasium that are stepped as one array; seconds on one CPU core."""

from __future__ import annotations

from penstock.algos.entropy import EntropyBonus
from penstock.algos.ppo import PPO
from penstock.config.keeping import CheckpointSpec
from penstock.config.learner import LearnerSpec
from penstock.config.run import Run
from penstock.control.stage import Control, EnvironmentsSpec, Episodes, PolicyNetwork, impala


def cartpole(seed: int = 0, steps: int = 200, algorithm: str = "ppo") -> Run:
    """CartPole-v1 (gymnasium) until the mean return of 100 episodes is 475; seconds on one CPU core.

    Args:
        seed: seed of weights, environments and decisions.
        steps: training batches at most.
        algorithm: ppo (generalised advantages) or impala (V-trace).
    """
    chosen = {
        "ppo": PPO(discount=0.98, lam=0.8, value_clip=0.0, entropy=EntropyBonus(coefficient=0.0)),
        "impala": impala(discount=0.98, entropy=EntropyBonus(coefficient=0.001)),
    }
    return Run(
        name="cartpole",
        seed=seed,
        device="cpu",
        threads=1,
        stages=(
            Control(
                name="control",
                environments=EnvironmentsSpec(id="CartPole-v1", count=128),
                model=PolicyNetwork(hidden=(64, 64)),
                algorithm=chosen[algorithm],
                learner=LearnerSpec(learning_rate=2e-3, schedule="linear", clip_norm=0.5, token_budget=65536),
                fragment=32,
                minibatches=4,
                epochs=4,
                steps=steps,
                solved=475.0,
                evaluation=Episodes(episodes=100),
            ),
        ),
        checkpoint=CheckpointSpec(every=0),
        headline="return {first[evaluation/reward]:.0f} → {last[evaluation/reward]:.0f} in {seconds:.1f} s",
    )
