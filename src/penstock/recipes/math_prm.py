"""A process reward model on arithmetic: judged step by step, a model that imitates a careless teacher leaves him behind.

A problem is a chain of digits to be added, an answer the running sums, of which only the last digit is kept. The teacher slips
at times and goes on with what he wrote, so most of his answers are wrong. Every step can be checked, and the process reward
model learns from steps so labelled (Lightman et al. 2023, arXiv 2305.20050; labels that need no human: Wang et al. 2023, arXiv
2312.08935). It then serves twice: it picks the best of several answers, and its least sure step is what GRPO is rewarded by,
with a point for an answer that is complete. Whether answers are right is measured and never rewarded.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from penstock.algos import GRPO, SFT, KLPenalty, ProcessReward
from penstock.config.run import DataSpec, EvaluationSpec, LearnerSpec, ModelSpec, Offline, Online, RewardSpec, Run, require
from penstock.core.types import Sample, Sampling

DIGITS = 4
"""Numbers of a chain; there is a step for each after the first."""

SLIP = 0.2
"""Chance that a step of the teacher is wrong. All three of his steps are right in half of his answers."""


def solution(chain: str) -> list[str]:
    """The right steps: ``["7+5=2", "2+9=1"]`` for ``"7+5+9"``."""
    first, *others = map(int, chain.split("+"))
    steps = []
    for number in others:
        steps.append(f"{first}+{number}={(first + number) % 10}")
        first = (first + number) % 10
    return steps


def attempt(chain: str, draw: np.random.Generator, slip: float) -> list[str]:
    """Steps of which each is wrong with probability ``slip``; who has slipped goes on from the wrong sum."""
    first, *others = map(int, chain.split("+"))
    steps = []
    for number in others:
        missed = int(draw.integers(1, 10)) if draw.random() < slip else 0
        found = (first + number + missed) % 10
        steps.append(f"{first}+{number}={found}")
        first = found
    return steps


def solutions(size: int, seed: int, held_out: bool = False, slip: float = SLIP) -> list[dict[str, Any]]:
    """Attempts as columns ``chain``, ``steps``, ``labels`` (1 for a step of the right solution, else 0), ``text`` and ``last``
    (the right last step).

    Every tenth chain is held out, so no chain is in both parts.

    Args:
        size: rows.
        seed: seed of chains and slips.
        held_out: which part.
        slip: chance that a step is wrong.
    """
    draw = np.random.default_rng(seed)
    rows: list[dict[str, Any]] = []
    while len(rows) < size:
        numbers = draw.integers(0, 10, DIGITS)
        if (int(numbers @ 3 ** np.arange(DIGITS)) % 10 == 0) is held_out:
            chain = "+".join(map(str, numbers))
            right, steps = solution(chain), attempt(chain, draw, slip)
            labels = [int(step == truth) for step, truth in zip(steps, right, strict=True)]
            text = "".join(f"{step}\n" for step in steps)
            rows.append({"chain": chain, "steps": steps, "labels": labels, "text": text, "last": right[-1]})
    return rows


def right_answer(sample: Sample, columns: dict[str, Any]) -> float:
    """Whether the last line of an answer is the right last step."""
    return float(sample.text.strip().rpartition("\n")[2] == columns["last"])


def complete(sample: Sample, columns: dict[str, Any]) -> float:
    """Whether an answer has all its steps. Without it the shortest answer is the surest, and soon the only one."""
    return float(len(sample.text.split()) == len(columns["steps"]))


def math_prm(seed: int = 0, steps: int = 40, slip: float = SLIP) -> Run:
    """SFT on a careless teacher, a process reward model, best-of-n and GRPO with its rewards; minutes on a laptop CPU.

    Args:
        seed: seed of weights, chains and sampling.
        steps: GRPO steps of 16 chains with 8 samples.
        slip: chance that a step of the teacher is wrong.
    """
    require(0 <= slip < 1, f"slip={slip} is no chance; give a number from 0 to below 1")
    data = DataSpec(
        source="penstock.recipes.math_prm:solutions",
        options={"size": 6000, "seed": seed, "slip": slip},
        prompt="{{ chain }}\n",
        completion="{{ text }}",
    )
    held_out = replace(data, name="held-out", options={**data.options, "held_out": True, "size": 500, "seed": seed + 1})
    return Run(
        name="math_prm",
        seed=seed,
        stages=(
            Offline(
                name="sft",
                model=ModelSpec(preset="1m", layers=2, vocabulary=259, context=64),  # bytes and marks: a digit is one token
                data=data,
                algorithm=SFT(),
                learner=LearnerSpec(learning_rate=2e-3, schedule="cosine_with_min_lr", warmup=20, token_budget=16384),
                batch=64,
                steps=250,
                evaluation=EvaluationSpec(data=held_out),
            ),
            Offline(
                name="prm",
                model=ModelSpec(path="@sft"),
                data=data,
                algorithm=ProcessReward(),
                learner=LearnerSpec(learning_rate=1e-3, schedule="cosine_with_min_lr", warmup=20, token_budget=16384),
                batch=64,
                steps=1200,
                evaluation=EvaluationSpec(data=held_out),
            ),
            _grpo(data, held_out, steps),
        ),
        headline="right {first[evaluation/reward]:.1%}, best of 8 {first[evaluation/best_of_8]:.1%}, "
        "after GRPO {last[evaluation/reward]:.1%} in {seconds:.0f} s",
    )


def _grpo(data: DataSpec, held_out: DataSpec, steps: int) -> Online:
    """Rewarded by the model's least sure step; measured by right answers, also of the answer that the model picks."""
    right = RewardSpec(function="penstock.recipes.math_prm:right_answer", name="right")
    whole = RewardSpec(function="penstock.recipes.math_prm:complete", name="complete")
    judge = RewardSpec(function="process:@prm", name="prm", options={"use": "minimum"})
    return Online(
        name="grpo",
        model=ModelSpec(path="@sft"),
        data=data,
        rewards=(judge, whole),
        algorithm=GRPO(kl=KLPenalty(place="loss", estimator="k3", coefficient=0.1)),  # or it climbs where the judge errs
        learner=LearnerSpec(learning_rate=1e-4, warmup=5, token_budget=16384),
        sampling=Sampling(max_new_tokens=6 * DIGITS),
        samples=8,
        batch=16,
        steps=steps,
        evaluation=EvaluationSpec(
            data=replace(held_out, size=100),
            rewards=(right, replace(judge, weight=0.0)),
            temperature=1.0,
            samples=8,
            best_of=(1, 8),
            rank_by="prm",
            every=20,
        ),
    )
