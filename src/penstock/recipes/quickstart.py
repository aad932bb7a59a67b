"""Arithmetic from scratch: a small model, a short SFT, then GRPO teaches it the rest."""

from __future__ import annotations

from dataclasses import replace

from penstock.algos.grpo import GRPO
from penstock.algos.sft import SFT
from penstock.core.run import DataSpec, EvaluationSpec, LearnerSpec, ModelSpec, Offline, Online, RewardSpec, Run
from penstock.core.types import Sampling


def quickstart(seed: int = 0, steps: int = 60) -> Run:
    """Arithmetic of reasoning-gym: SFT to half-competence, then GRPO; minutes on a laptop CPU.

    Args:
        seed: seed of weights, data and sampling.
        steps: GRPO steps.
    """
    task = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2}
    train = DataSpec(
        source="gym:chain_sum",
        options=task | {"seed": 1},
        size=20000,
        prompt="{{ question }}\n",
        completion="{{ answer }}",
    )
    held_out = replace(train, options=task | {"seed": 2}, size=200)
    return Run(
        name="quickstart",
        seed=seed,
        stages=(
            Offline(
                name="sft",
                model=ModelSpec(preset="1m", vocabulary=300, context=128),
                data=train,
                algorithm=SFT(),
                learner=LearnerSpec(learning_rate=1e-3, warmup=20, token_budget=8192),
                batch=128,
                steps=60,
            ),
            Online(
                name="grpo",
                model=ModelSpec(path="@sft"),
                data=train,
                rewards=(RewardSpec(function="exact_match"),),
                algorithm=GRPO(clip=(0.2, 0.28)),
                learner=LearnerSpec(learning_rate=3e-4, token_budget=8192),
                sampling=Sampling(max_new_tokens=8),
                samples=8,
                batch=32,
                steps=steps,
                slots=256,
                evaluation=EvaluationSpec(data=held_out, every=20),
            ),
        ),
        headline="held-out accuracy {first[evaluation/reward]:.1%} → {last[evaluation/reward]:.1%} in {seconds:.0f} s",
    )
