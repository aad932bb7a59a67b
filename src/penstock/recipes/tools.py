"""Tools, from scratch: SFT imitates a teacher who asks them carelessly, GRPO learns from right and wrong what to ask."""

from __future__ import annotations

import json
from typing import Any, Literal

import numpy as np

from penstock.algos.grpo import GRPO
from penstock.algos.sft import SFT
from penstock.config.run import DataSpec, EvaluationSpec, LearnerSpec, ModelSpec, Offline, Online, RewardSpec, Run
from penstock.core.types import Sampling
from penstock.envs.small_tools import COLUMNS, ITEMS, calculate, table
from penstock.envs.spec import EnvironmentSpec

SIGNS = {"plus": "+", "minus": "-", "times": "*"}
ASKED = dict(zip(COLUMNS, ("what does {} cost?", "how much {} is there?", "where is {}?"), strict=True))
TOOLS = {"calculator": "calculate", "sql": "query"}

Task = Literal["calculator", "sql"]


def questions(task: Task, size: int, seed: int) -> list[dict[str, Any]]:
    """Rows with a ``question``, its ``answer`` and what a careless teacher ``said``, who takes any sign or column, and guesses
    every second sum without a call."""
    random, stock = np.random.Generator(np.random.Philox(seed)), table()
    rows: list[dict[str, Any]] = []
    for _ in range(size):
        if task == "calculator":
            (one, other), word = random.integers(11, 99, 2).tolist(), str(random.choice(list(SIGNS)))
            question, asked = f"{one} {word} {other}?", f"{one}{random.choice(list(SIGNS.values()))}{other}"
            arguments, result, answer = {"expression": asked}, calculate(asked), calculate(f"{one}{SIGNS[word]}{other}")
        else:
            item, column, other = str(random.choice(ITEMS)), str(random.choice(COLUMNS)), str(random.choice(COLUMNS))
            question, read = ASKED[column].format(item), "SELECT {} FROM stock WHERE item = '{}'".format
            arguments = {"sql": read(other, item)}
            result, answer = (str(stock.execute(read(name, item)).fetchone()[0]) for name in (other, column))
        call = f"<tool_call>\n{json.dumps({'name': TOOLS[task], 'arguments': arguments})}\n</tool_call>"
        turns = [("user", question), ("assistant", call), ("tool", result), ("assistant", result)]
        if task == "calculator" and random.random() < 0.5:
            turns[1:] = [("assistant", str(random.integers(1, 9999)))]
        said = [{"role": role, "content": content} for role, content in turns]
        rows.append({"question": question, "answer": answer, "said": said})
    return rows


def imitated(task: Task, size: int, seed: int) -> list[dict[str, Any]]:
    """The teacher's conversations."""
    return [{"messages": row["said"]} for row in questions(task, size, seed)]


def tools(seed: int = 0, task: Task = "calculator", imitation: int = 0, steps: int = 60) -> Run:
    """A calculator or SQL over a small table as a tool: SFT on a careless teacher, then GRPO; minutes on a CPU.

    Args:
        seed: seed of weights, data and sampling.
        task: calculator, or sql.
        imitation: SFT steps; 0: 250 for the calculator, 120 for sql, after which a policy is not yet too sure to try anything.
        steps: GRPO steps.
    """
    imitation = imitation or (250 if task == "calculator" else 120)

    def data(function: str, **options: Any) -> DataSpec:
        source = f"penstock.recipes.tools:{function}"
        name = "asked" if options["seed"] else "held-out"
        asked: dict[str, Any] = {"prompt": "{{ question }}"} if function == "questions" else {}
        return DataSpec(source=source, name=name, chat=True, options={"task": task, **options}, **asked)

    return Run(
        name=f"tools-{task}",
        seed=seed,
        stages=(
            Offline(
                name="sft",
                model=ModelSpec(preset="1m", vocabulary=400, context=128),
                data=data("imitated", size=64 * imitation, seed=seed + 10**6),
                algorithm=SFT(),
                learner=LearnerSpec(learning_rate=2e-3, schedule="linear_with_min_lr", warmup=10, token_budget=16384),
                batch=64,
                steps=imitation,
            ),
            Online(
                name="grpo",
                model=ModelSpec(path="@sft"),
                data=data("questions", size=16 * steps, seed=seed + 1),
                environment=EnvironmentSpec(
                    function="tools",
                    turns=3,
                    show_tools=False,  # the imitated conversations did not show them either
                    options={"tools": [f"penstock.envs.small_tools:{TOOLS[task]}"]},
                ),
                rewards=(RewardSpec(function="exact_match"),),
                algorithm=GRPO(clip=(0.2, 0.28)),
                learner=LearnerSpec(learning_rate=5e-4, warmup=5, token_budget=16384),
                sampling=Sampling(max_new_tokens=40),
                samples=16,
                batch=16,
                max_running=256,
                steps=steps,
                evaluation=EvaluationSpec(data=data("questions", size=120, seed=0), every=20),
            ),
        ),
        headline="answers right {first[evaluation/reward]:.1%} → {last[evaluation/reward]:.1%} in {seconds:.0f} s",
    )
