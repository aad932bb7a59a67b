"""Counting from scratch: SFT imitates a careless teacher, then GRPO, which learns only right or wrong, surpasses it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from penstock.algos.grpo import GRPO
from penstock.algos.sft import SFT
from penstock.config.run import DataSpec, EvaluationSpec, LearnerSpec, ModelSpec, Offline, Online, RewardSpec, Run
from penstock.core.types import Sampling
from penstock.data.sources import open_source

BITS = 14

MISSED = 0.18
"""Chance that the teacher overlooks a one. He is right about one number in four, and so is who learns from him alone."""


def binary_numbers(size: int, seed: int, held_out: bool, missed: float = 0.0) -> list[Mapping[str, Any]]:
    """Rows of reasoning-gym's ``count_bits``. Every tenth number is held out, so no prompt is in both parts.

    To be learned from, every answer is as frequent as any other: among uniform numbers, few or many ones are rare. The
    held-out part is uniform.

    Args:
        size: numbers that are generated, before the part is chosen.
        seed: seed of the draw.
        held_out: which part.
        missed: chance that each one is overlooked, so that the ``answer`` is often too small; 0 counts right.
    """
    task = DataSpec(source="gym:count_bits", options={"min_n": 1, "max_n": 2**BITS - 1, "seed": seed}, size=size)
    found, seen = open_source(task, Path.cwd()), np.random.Generator(np.random.Philox(seed))
    rows = [found[index]["metadata"] | {"answer": found[index]["answer"]} for index in range(len(found))]
    rows = [row for row in rows if (row["number"] % 10 == 0) is held_out]
    rows = rows if held_out else balanced(rows)
    return [{**row, "answer": str(seen.binomial(int(row["answer"]), 1 - missed))} for row in rows]


def balanced(rows: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """As many rows, taken from every answer in turn; those of a rare answer come more than once."""
    by_answer: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_answer.setdefault(row["answer"], []).append(row)
    turns = [itertools.cycle(by_answer[answer]) for answer in sorted(by_answer, key=int)]
    return [next(turn) for turn, _ in zip(itertools.cycle(turns), rows, strict=False)]


def numbers(size: int, seed: int, held_out: bool = False, missed: float = 0.0) -> DataSpec:
    """ "110101 =" is to be answered by the number of its ones."""
    return DataSpec(
        source="penstock.recipes.quickstart:binary_numbers",
        name="held-out" if held_out else "count_bits",
        options={"size": size, "seed": seed, "held_out": held_out, "missed": missed},
        prompt="{{ binary }} =",
        completion="{{ answer }}",
    )


def quickstart(seed: int = 0, steps: int = 100) -> Run:
    """Counting the ones of binary numbers (reasoning-gym): SFT on a careless teacher's answers, then GRPO; minutes on a CPU.

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
                data=numbers(4000, seed=10**6, missed=MISSED),
                algorithm=SFT(),
                learner=LearnerSpec(learning_rate=1e-3, schedule="linear_with_min_lr", warmup=20, token_budget=16384),
                batch=64,
                steps=80,
            ),
            Online(
                name="grpo",
                model=ModelSpec(path="@sft"),
                data=numbers(20000, seed=2 * 10**6),
                rewards=(RewardSpec(function="exact_match"),),
                algorithm=GRPO(clip=(0.2, 0.28)),
                learner=LearnerSpec(learning_rate=3e-4, schedule="linear_with_min_lr", warmup=10, token_budget=16384),
                sampling=Sampling(max_new_tokens=4),
                samples=16,
                batch=64,
                max_running=1024,
                steps=steps,
                evaluation=EvaluationSpec(data=numbers(4000, seed=3 * 10**6, held_out=True), every=20),
            ),
        ),
        headline="held-out accuracy {first[evaluation/reward]:.1%} → {last[evaluation/reward]:.1%} in {seconds:.0f} s",
    )
