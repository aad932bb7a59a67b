"""Hide-and-seek on a grid: two teams with recurrent policies learn against one another and against past versions."""

from __future__ import annotations

from penstock.algos.entropy import EntropyBonus
from penstock.algos.ppo import PPO
from penstock.config.keeping import CheckpointSpec
from penstock.config.learner import LearnerSpec
from penstock.config.run import Run
from penstock.control.league import League, Opponents
from penstock.control.stage import EnvironmentsSpec, Episodes, PolicyNetwork


def hide_and_seek(seed: int = 0, steps: int = 300, games: int = 128) -> Run:
    """Hiders and seekers by PPO, half of the games against earlier versions; minutes on one CPU core."""
    stage = League(
        name="league",
        environments=EnvironmentsSpec(id="penstock.control.hide_and_seek:hide_and_seek", count=games),
        teams={"hider_.*": "hiders", "seeker_.*": "seekers"},
        opponents=Opponents(query="prioritised", every=25),
        model=PolicyNetwork(hidden=(64,), activation="relu", memory=64),
        algorithm=PPO(discount=0.98, lam=0.95, value_clip=0.0, value_coefficient=0.1, entropy=EntropyBonus(coefficient=0.01)),
        learner=LearnerSpec(learning_rate=2e-3, clip_norm=0.5, token_budget=65536),
        fragment=40,
        minibatches=4,
        epochs=2,
        steps=steps,
        evaluation=Episodes(episodes=256, longest=40, film=40),
    )
    against = "evaluation/hiders against first"
    return Run(
        name="hide_and_seek",
        seed=seed,
        device="cpu",
        threads=1,
        stages=(stage,),
        checkpoint=CheckpointSpec(every=50),
        headline=f"hiders {{first[{against}]:.1f}} → {{last[{against}]:.1f}} against the first seekers",
    )
