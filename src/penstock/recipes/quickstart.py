"""Arithmetic from scratch: a model that can hardly count, a very short SFT, then GRPO teaches it the rest."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.algos.grpo import GRPO
from penstock.algos.kl import KLPenalty
from penstock.algos.sft import SFT
from penstock.core.run import DataSpec, EvaluationSpec, LearnerSpec, ModelSpec, Offline, Online, RewardSpec, Run
from penstock.core.types import Sampling
from penstock.data.sources import open_source

BITS = 14


def binary_numbers(size: int, seed: int, held_out: bool) -> list[Mapping[str, Any]]:
    """Rows of reasoning-gym's ``count_bits``. Every tenth number is held out, so no prompt is in both parts."""
    task = DataSpec(source="gym:count_bits", options={"min_n": 1, "max_n": 2**BITS - 1, "seed": seed}, size=size)
    drawn = open_source(task, Path.cwd())
    rows = [drawn[index]["metadata"] | {"answer": drawn[index]["answer"]} for index in range(len(drawn))]
    return [row for row in rows if (row["number"] % 10 == 0) is held_out]


def numbers(size: int, seed: int, held_out: bool = False) -> DataSpec:
    """ "110101 =" is to be answered by the number of its ones."""
    return DataSpec(
        source="penstock.recipes.quickstart:binary_numbers",
        name="held-out" if held_out else "count_bits",
        options={"size": size, "seed": seed, "held_out": held_out},
        prompt="{{ binary }} =",
        completion="{{ answer }}",
    )


def quickstart(seed: int = 0, steps: int = 240) -> Run:
    """Counting the ones of binary numbers (reasoning-gym): a short SFT, then GRPO; minutes on a laptop CPU.

    Args:
        seed: seed of weights, data and sampling.
        steps: GRPO steps.
    """
    return Run(
        name="quickstart",
        seed=seed,
        stages=(
            Offline(
                name="sft",
                model=ModelSpec(preset="1m", vocabulary=300, context=64),
                data=numbers(4000, seed=10**6),
                algorithm=SFT(),
                # Stopped while the rate still warms up: half-competent is what reinforcement learning is to start from.
                learner=LearnerSpec(learning_rate=1e-3, warmup=20, token_budget=16384),
                batch=64,
                steps=16,
            ),
            Online(
                name="grpo",
                model=ModelSpec(path="@sft"),
                data=numbers(20000, seed=2 * 10**6),
                rewards=(RewardSpec(function="exact_match"),),
                # Without the penalty the policy grows sure of the frequent answers before it has tried the rare ones.
                algorithm=GRPO(clip=(0.2, 0.28), kl=KLPenalty(place="loss", estimator="k3", coefficient=0.02)),
                learner=LearnerSpec(learning_rate=2e-4, schedule="linear", warmup=5, token_budget=16384),
                sampling=Sampling(max_new_tokens=4),
                samples=8,
                batch=64,
                slots=512,
                steps=steps,
                evaluation=EvaluationSpec(data=numbers(4000, seed=3 * 10**6, held_out=True), every=20),
            ),
        ),
        headline="held-out accuracy {first[evaluation/reward]:.1%} → {last[evaluation/reward]:.1%} in {seconds:.0f} s",
    )
