"""SQL over a small table as a tool, from scratch: SFT on queries for a column at random, GRPO on whether the answer is right."""

from __future__ import annotations

import json
import sqlite3
from typing import Any

import numpy as np

from penstock.algos.grpo import GRPO
from penstock.algos.sft import SFT
from penstock.config.run import DataSpec, EvaluationSpec, LearnerSpec, ModelSpec, Offline, Online, RewardSpec, Run
from penstock.core.types import Sampling
from penstock.envs.spec import EnvironmentSpec

ASKED = {"price": "what does {} cost?", "amount": "how much {} is there?", "shelf": "where is {}?"}
ITEMS = "apple bread cheese dill egg fig grape honey ice jam kale lemon milk nut oil pea rice salt tea wine".split()
ALLOWED = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ)


def table() -> sqlite3.Connection:
    """A new table ``stock`` in memory that can only be read, by queries of 100,000 steps at most."""
    made = sqlite3.connect(":memory:", check_same_thread=False)
    made.execute("CREATE TABLE stock (item TEXT, price INTEGER, amount INTEGER, shelf INTEGER)")
    numbers = np.random.Generator(np.random.Philox(5)).integers(10, 99, (len(ITEMS), 3)).tolist()
    made.executemany("INSERT INTO stock VALUES (?, ?, ?, ?)", [[item, *row] for item, row in zip(ITEMS, numbers, strict=True)])
    made.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in ALLOWED else sqlite3.SQLITE_DENY)
    made.set_progress_handler(lambda: 1, 100_000)
    return made


async def query(sql: str, state: dict[str, Any]) -> str:
    """Rows of the table stock (item, price, amount, shelf).

    Args:
        sql: a SELECT
    """
    connection = state["connection"] = state.get("connection") or table()
    return "\n".join(", ".join(map(str, row)) for row in connection.execute(sql).fetchmany(20)) or "no rows"


def questions(size: int, seed: int) -> list[dict[str, Any]]:
    """Rows with a ``question``, its ``answer``, and the ``messages`` of a teacher who asks for any column."""
    random, stock, rows = np.random.Generator(np.random.Philox(seed)), table(), []
    for _ in range(size):
        item, (column, asked) = str(random.choice(ITEMS)), list(ASKED.items())[random.integers(len(ASKED))]
        sql = f"SELECT {random.choice(list(ASKED))} FROM stock WHERE item = '{item}'"
        found, answer = (str(stock.execute(text).fetchone()[0]) for text in (sql, sql.replace(sql.split()[1], column, 1)))
        call = json.dumps({"name": "query", "arguments": {"sql": sql}})
        turns = [
            ("user", asked.format(item)),
            ("assistant", f"<tool_call>\n{call}\n</tool_call>"),
            ("tool", found),
            ("assistant", found),
        ]
        messages = [{"role": role, "content": content} for role, content in turns]
        rows.append({"question": asked.format(item), "answer": answer, "teacher": messages})
    return rows


def imitated(size: int, seed: int) -> list[dict[str, Any]]:
    """The teacher's conversations."""
    return [{"messages": row["teacher"]} for row in questions(size, seed)]


def sql(seed: int = 0, steps: int = 40) -> Run:
    """SQL over a small table as a tool: SFT on queries for any column, then GRPO on right or wrong; minutes on a CPU.

    Args:
        seed: seed of weights, data and sampling.
        steps: GRPO steps.
    """
    here, asked = "penstock.recipes.sql", {"prompt": "{{ question }}", "chat": True}
    return Run(
        name="sql",
        seed=seed,
        stages=(
            Offline(
                name="sft",
                model=ModelSpec(preset="1m", vocabulary=400, context=128),
                data=DataSpec(source=f"{here}:imitated", chat=True, options={"size": 4000, "seed": seed}),
                algorithm=SFT(),
                learner=LearnerSpec(learning_rate=2e-3, schedule="linear_with_min_lr", warmup=10, token_budget=16384),
                batch=64,
                steps=120,
            ),
            Online(
                name="grpo",
                model=ModelSpec(path="@sft"),
                data=DataSpec(source=f"{here}:questions", options={"size": 4000, "seed": seed + 1}, **asked),
                environment=EnvironmentSpec(function="tools", turns=3, options={"tools": [f"{here}:query"]}),
                rewards=(RewardSpec(function="exact_match"),),
                algorithm=GRPO(clip=(0.2, 0.28)),
                learner=LearnerSpec(learning_rate=5e-4, warmup=5, token_budget=16384),
                sampling=Sampling(max_new_tokens=40),
                samples=16,
                batch=16,
                max_running=256,
                steps=steps,
                evaluation=EvaluationSpec(
                    data=DataSpec(source=f"{here}:questions", name="again", options={"size": 120, "seed": 7}, **asked), every=20
                ),
            ),
        ),
        headline="answers right {first[evaluation/reward]:.1%} → {last[evaluation/reward]:.1%} in {seconds:.0f} s",
    )
