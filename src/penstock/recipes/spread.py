"""Agents that share a reward in a game of PettingZoo, by MAPPO: its critic reads what all see; two minutes on a CPU core."""

from __future__ import annotations

from penstock.algos.entropy import EntropyBonus
from penstock.algos.ppo import PPO
from penstock.config.learner import LearnerSpec
from penstock.config.optimizers import AdamW
from penstock.config.run import Run
from penstock.control.stage import Control, EnvironmentsSpec, Episodes, PolicyNetwork

ADAM = AdamW(betas=(0.9, 0.999), epsilon=1e-5)


def spread(seed: int = 0, steps: int = 300, id: str = "mpe2.simple_spread_v3:parallel_env") -> Run:
    """Three agents that spread over three places without touching, by MAPPO; or another cooperative game of PettingZoo.

    Args:
        seed: seed of weights, games and decisions.
        steps: training batches, of 32 steps of 32 games.
        id: MODULE:parallel_env of a game whose agents see and decide alike (mpe2.simple_reference_v3:parallel_env).
    """
    stage = Control(
        name="control",
        environments=EnvironmentsSpec(id=id, count=32, vectorization="parallel"),
        model=PolicyNetwork(activation="relu", critic="central", normalize=True),
        algorithm=PPO(discount=0.99, value_clip=0.0, entropy=EntropyBonus(coefficient=0.01)),
        learner=LearnerSpec(learning_rate=1e-3, clip_norm=0.5, token_budget=65536, optimizer=ADAM),
        scale_rewards=True,
        steps=steps,
        evaluation=Episodes(episodes=64, longest=30, film=25),
    )
    said = "return of an agent {first[evaluation/reward]:.1f} → {last[evaluation/reward]:.1f} in {seconds:.1f} s"
    return Run(name="spread", seed=seed, device="cpu", threads=1, stages=(stage,), headline=said)
