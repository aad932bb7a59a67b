"""A calculator as a tool, from scratch: SFT imitates a teacher who often guesses, GRPO learns when and how to ask the tool."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np

from penstock.algos.grpo import GRPO
from penstock.algos.sft import SFT
from penstock.config.run import DataSpec, EvaluationSpec, LearnerSpec, ModelSpec, Offline, Online, RewardSpec, Run
from penstock.core.types import Sampling
from penstock.envs.spec import EnvironmentSpec

SIGNS = {"plus": "+", "minus": "-", "times": "*"}


def calculate(expression: str) -> str:
    """The value of a sum, a difference or a product of two whole numbers.

    Args:
        expression: such as 12*7
    """
    if (found := re.fullmatch(r"(\d{1,6})([-+*])(\d{1,6})", expression)) is None:
        raise ValueError("write two numbers with +, - or * between them, such as 12*7")
    one, sign, other = int(found[1]), found[2], int(found[3])
    return str({"+": one + other, "-": one - other, "*": one * other}[sign])


def questions(size: int, seed: int, held_out: bool = False) -> list[dict[str, Any]]:
    """Rows with a ``question``, its ``answer``, and what a ``teacher`` says, who guesses every second time, and else asks the
    tool with a sign at random. Questions whose two numbers add up to a multiple of 10 are held out."""
    random, rows = np.random.Generator(np.random.Philox(seed)), []
    while len(rows) < size:
        one, other = (int(number) for number in random.integers(11, 99, 2))
        word, sign = str(random.choice(list(SIGNS))), str(random.choice(list(SIGNS.values())))
        if ((one + other) % 10 == 0) is not held_out:
            continue
        question = f"{one} {word} {other}?"
        said = [{"role": "user", "content": question}]
        if random.random() < 0.5:
            said.append({"role": "assistant", "content": str(random.integers(1, 9999))})
        else:
            call = {"name": "calculate", "arguments": {"expression": f"{one}{sign}{other}"}}
            found = calculate(call["arguments"]["expression"])  # type: ignore[index]
            said.append({"role": "assistant", "content": f"<tool_call>\n{json.dumps(call)}\n</tool_call>"})
            said += [{"role": "tool", "content": found}, {"role": "assistant", "content": found}]
        rows.append({"question": question, "answer": calculate(f"{one}{SIGNS[word]}{other}"), "teacher": said})
    return rows


def imitated(size: int, seed: int) -> list[dict[str, Any]]:
    """The teacher's conversations."""
    return [{"messages": row["teacher"]} for row in questions(size, seed)]


def calculator(seed: int = 0, steps: int = 60) -> Run:
    """A calculator as a tool: SFT on a teacher who guesses or takes any sign, then GRPO on right or wrong; minutes on a CPU.

    Args:
        seed: seed of weights, data and sampling.
        steps: GRPO steps.
    """
    here, asked = "penstock.recipes.calculator", {"prompt": "{{ question }}", "chat": True}
    return Run(
        name="calculator",
        seed=seed,
        stages=(
            Offline(
                name="sft",
                model=ModelSpec(preset="1m", vocabulary=360, context=128),
                data=DataSpec(source=f"{here}:imitated", chat=True, options={"size": 20000, "seed": seed}),
                algorithm=SFT(),
                learner=LearnerSpec(learning_rate=2e-3, schedule="linear_with_min_lr", warmup=10, token_budget=16384),
                batch=64,
                steps=250,
            ),
            Online(
                name="grpo",
                model=ModelSpec(path="@sft"),
                data=DataSpec(source=f"{here}:questions", options={"size": 20000, "seed": seed + 1}, **asked),
                environment=EnvironmentSpec(function="tools", turns=3, options={"tools": [f"{here}:calculate"]}),
                rewards=(RewardSpec(function="exact_match"),),
                algorithm=GRPO(clip=(0.2, 0.28)),
                learner=LearnerSpec(learning_rate=3e-4, warmup=5, token_budget=16384),
                sampling=Sampling(max_new_tokens=40),
                samples=16,
                batch=16,
                max_running=256,
                steps=steps,
                evaluation=EvaluationSpec(
                    data=DataSpec(
                        source=f"{here}:questions", name="held-out", options={"size": 200, "seed": 7, "held_out": True}, **asked
                    ),
                    every=20,
                ),
            ),
        ),
        headline="held-out answers right {first[evaluation/reward]:.1%} → {last[evaluation/reward]:.1%} in {seconds:.0f} s",
    )
