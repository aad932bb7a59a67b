"""Programs, from scratch: SFT imitates a teacher who mistakes signs, GRPO learns from tests that run in a jail."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.algos.grpo import GRPO
from penstock.algos.sft import SFT
from penstock.config.run import DataSpec, EvaluationSpec, LearnerSpec, ModelSpec, Offline, Online, RewardSpec, Run
from penstock.core.types import Sampling

SIGNS = {"plus": "+", "minus": "-", "times": "*"}


def tasks(size: int, seed: int) -> list[dict[str, Any]]:
    """Rows with a ``task``, two ``tests`` and what a careless teacher ``wrote``, who takes any sign every second time."""
    random = np.random.Generator(np.random.Philox(seed))
    rows: list[dict[str, Any]] = []
    for _ in range(size):
        words, numbers = random.choice(list(SIGNS), 2).tolist(), random.integers(2, 10, 2).tolist()
        signs = [SIGNS[word] for word in words]
        wrote = [str(random.choice(list(SIGNS.values()))) if random.random() < 0.5 else sign for sign in signs]
        rows.append(
            {
                "task": f"{words[0]} {numbers[0]}, then {words[1]} {numbers[1]}:",
                "wrote": program(wrote, numbers),
                "tests": [{"input": str(x), "output": str(value(x, signs, numbers))} for x in (7, 12)],
            }
        )
    return rows


def program(signs: list[str], numbers: list[int]) -> str:
    """Python that reads a number and prints it after two steps."""
    return f"print((int(input()){signs[0]}{numbers[0]}){signs[1]}{numbers[1]})"


def value(x: int, signs: list[str], numbers: list[int]) -> int:
    """What a right program prints."""
    for sign, number in zip(signs, numbers, strict=True):
        x = {"+": x + number, "-": x - number, "*": x * number}[sign]
    return x


def programs(seed: int = 0, imitation: int = 150, steps: int = 20) -> Run:
    """Programs of one line, judged by tests in the jail of ``penstock.sandbox``: SFT, then GRPO; minutes on a CPU.

    Args:
        seed: seed of weights, data and sampling.
        imitation: SFT steps.
        steps: GRPO steps.
    """

    def data(size: int, number: int, **more: Any) -> DataSpec:
        name = "tasks" if number else "held-out"
        options = {"size": size, "seed": number}
        return DataSpec(source="penstock.recipes.programs:tasks", name=name, prompt="{{ task }}\n", options=options, **more)

    return Run(
        name="programs",
        seed=seed,
        stages=(
            Offline(
                name="sft",
                model=ModelSpec(preset="1m", vocabulary=300, context=96),
                data=data(64 * imitation, seed + 10**6, completion="{{ wrote }}"),
                algorithm=SFT(),
                learner=LearnerSpec(learning_rate=2e-3, schedule="linear_with_min_lr", warmup=10, token_budget=16384),
                batch=64,
                steps=imitation,
            ),
            Online(
                name="grpo",
                model=ModelSpec(path="@sft"),
                data=data(16 * steps, seed + 1),
                rewards=(RewardSpec(function="code"),),
                algorithm=GRPO(clip=(0.2, 0.28)),
                learner=LearnerSpec(learning_rate=5e-4, warmup=5, token_budget=16384),
                sampling=Sampling(max_new_tokens=32),
                samples=8,
                batch=16,
                steps=steps,
                evaluation=EvaluationSpec(data=data(120, 0), every=10, temperature=1.0),
            ),
        ),
        headline="programs right {first[evaluation/reward]:.1%} → {last[evaluation/reward]:.1%} in {seconds:.0f} s",
    )
