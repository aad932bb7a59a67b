"""Pong from pixels: PPO with the convolutions of Mnih et al. 2015, Atari by EnvPool; half an hour on two cores."""

from __future__ import annotations

from penstock.algos.entropy import EntropyBonus
from penstock.algos.ppo import PPO
from penstock.config.learner import LearnerSpec
from penstock.config.optimizers import AdamW
from penstock.config.run import Run
from penstock.control.stage import Control, EnvironmentsSpec, Episodes, PolicyNetwork


def pong(seed: int = 0, steps: int = 600, id: str = "Pong-v5") -> Run:
    """An Atari game by PPO from four frames of 84 × 84; ``--steps`` counts batches of 2,048 steps (8,192 frames)."""
    stage = Control(
        name="control",
        environments=EnvironmentsSpec(id=id, count=64, vectorization="envpool", options={"reward_clip": True}),
        model=PolicyNetwork(hidden=(512,), activation="relu"),
        algorithm=PPO(discount=0.99, value_clip=0.0, clip=(0.1, 0.1), entropy=EntropyBonus(coefficient=0.01)),
        learner=LearnerSpec(learning_rate=1e-3, clip_norm=0.5, token_budget=1024, optimizer=AdamW(betas=(0.9, 0.999))),
        fragment=32,
        minibatches=8,
        epochs=3,
        steps=steps,
        evaluation=Episodes(episodes=8, longest=3000, film=200),
    )
    return Run(
        name="pong", seed=seed, device="cpu", stages=(stage,), headline="return {last[episode/return]:.1f} in {seconds:.0f} s"
    )
