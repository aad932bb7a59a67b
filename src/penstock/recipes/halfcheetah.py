"""A running robot: PPO with continuous decisions in 64 environments of MuJoCo, stepped by EnvPool; a minute on two cores."""

from __future__ import annotations

from penstock.algos.ppo import PPO
from penstock.config.learner import LearnerSpec
from penstock.config.optimizers import AdamW
from penstock.config.run import Run
from penstock.control.stage import Control, EnvironmentsSpec, Episodes, PolicyNetwork

ADAM = AdamW(betas=(0.9, 0.999), epsilon=1e-5)


def halfcheetah(seed: int = 0, steps: int = 500, id: str = "HalfCheetah-v4") -> Run:
    """HalfCheetah (MuJoCo) by PPO with normalised observations and scaled rewards.

    Args:
        seed: seed of weights, environments and decisions.
        steps: training batches, of 2,048 steps each.
        id: a task of EnvPool with vectors of numbers and continuous actions.
    """
    stage = Control(
        name="control",
        environments=EnvironmentsSpec(id=id, count=64, vectorization="envpool"),
        model=PolicyNetwork(activation="relu", critic="separate", normalize=True, deviation=0.5),
        algorithm=PPO(discount=0.99, value_clip=0.0, value_coefficient=1.0),
        learner=LearnerSpec(learning_rate=1e-3, clip_norm=0.5, token_budget=65536, optimizer=ADAM),
        scale_rewards=True,
        epochs=4,
        steps=steps,
        evaluation=Episodes(episodes=16, longest=1000),
    )
    said = "return {first[evaluation/reward]:.0f} → {last[evaluation/reward]:.0f} in {seconds:.1f} s"
    return Run(name="halfcheetah", seed=seed, device="cpu", threads=1, stages=(stage,), headline=said)
