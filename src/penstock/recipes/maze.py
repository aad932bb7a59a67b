"""A text game of several turns, from scratch: SFT on random walks, then GRPO on goals reached."""

from __future__ import annotations

from dataclasses import replace

from penstock.algos.grpo import GRPO
from penstock.algos.sft import SFT
from penstock.config.run import DataSpec, EvaluationSpec, LearnerSpec, ModelSpec, Offline, Online, RewardSpec, Run
from penstock.core.types import Sampling
from penstock.envs.spec import EnvironmentSpec


def maze(seed: int = 0, steps: int = 100) -> Run:
    """A maze that is not shown is walked one letter a turn: SFT on random walks, then GRPO; minutes on a CPU.

    Args:
        seed: seed of weights, data and sampling.
        steps: GRPO steps.
    """
    data = DataSpec(source="penstock.envs.maze:walks", prompt="{{ text }}", completion="{{ move }}")
    learner = LearnerSpec(learning_rate=1e-3, warmup=5, token_budget=16384)
    return Run(
        name="maze",
        seed=seed,
        stages=(
            Offline(
                name="sft",
                model=ModelSpec(preset="1m", vocabulary=280, context=64),
                data=replace(data, options={"size": 4000, "seed": seed}),
                algorithm=SFT(),
                learner=learner,
                batch=64,
                steps=40,
            ),
            Online(
                name="grpo",
                model=ModelSpec(path="@sft"),
                data=data,
                environment=EnvironmentSpec(function="penstock.envs.maze:Maze", turns=6),
                rewards=(RewardSpec(function="environment"),),
                algorithm=GRPO(clip=(0.2, 0.28)),
                learner=learner,
                sampling=Sampling(max_new_tokens=1),
                samples=16,
                batch=16,
                max_running=256,
                steps=steps,
                evaluation=EvaluationSpec(data=data, every=25, temperature=1.0),
            ),
        ),
        headline="goals reached {first[evaluation/reward]:.1%} → {last[evaluation/reward]:.1%} in {seconds:.0f} s",
    )
