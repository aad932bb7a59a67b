"""Driving on a highway, and other tasks of discrete decisions that EnvPool steps: PPO from vectors; a minute on a CPU core."""

from __future__ import annotations

from penstock.algos.entropy import EntropyBonus
from penstock.algos.ppo import PPO
from penstock.config.learner import LearnerSpec
from penstock.config.optimizers import AdamW
from penstock.config.run import Run
from penstock.control.stage import Control, EnvironmentsSpec, Episodes, PolicyNetwork

ADAM = AdamW(betas=(0.9, 0.999), epsilon=1e-5)


def highway(seed: int = 0, steps: int = 300, id: str = "highway-fast-v0", discount: float = 0.95, lam: float = 0.95) -> Run:
    """Driving among other cars (highway-env's task, by EnvPool), or LunarLander, by PPO from vectors.

    Args:
        seed: seed of weights, environments and decisions.
        steps: training batches, of 2,048 steps each.
        id: a task of EnvPool with vectors of numbers and discrete decisions (LunarLander-v3).
        discount: of later rewards; LunarLander wants 0.995.
        lam: of generalised advantages; LunarLander wants 0.98.
    """
    stage = Control(
        name="control",
        environments=EnvironmentsSpec(id=id, count=64, vectorization="envpool"),
        model=PolicyNetwork(activation="relu", critic="separate", normalize=True),
        algorithm=PPO(discount=discount, lam=lam, value_clip=0.0, entropy=EntropyBonus(coefficient=0.01)),
        learner=LearnerSpec(learning_rate=1e-3, clip_norm=0.5, token_budget=65536, optimizer=ADAM),
        scale_rewards=True,
        steps=steps,
        evaluation=Episodes(episodes=64, longest=1000, film=40),
    )
    said = "return {first[evaluation/reward]:.1f} → {last[evaluation/reward]:.1f} in {seconds:.1f} s"
    return Run(name="highway", seed=seed, device="cpu", threads=1, stages=(stage,), headline=said)
