"""What a user brings from outside the package: a role that writes a column of its own, and a stage of its own."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

from penstock.config.parts import DataSpec, EvaluationSpec, ModelSpec
from penstock.config.roles import Role, register
from penstock.config.spec import spec
from penstock.config.stage import Stage
from penstock.core.types import Group
from penstock.loops.learn import Step
from penstock.runtime.bootstrap import Bootstrap
from penstock.runtime.remote import write_column
from penstock.runtime.stages import StageRuntime


@register
class Letters(Role):
    """Counts the letters of every answer."""

    name = "letters"
    column = "letters"
    program = f"{__file__}:count_letters"


async def count_letters(bootstrap: Bootstrap) -> None:
    async def counted(group: Group) -> Sequence[dict[str, Any]]:
        with open("letters.jsonl", "a", encoding="utf-8") as out:
            out.write(json.dumps(group.key.ordinal) + "\n")
        return [{"extras": {"letters": float(len(sample.text))}} for sample in group.samples]

    await write_column(bootstrap, "letters", counted)


@spec
class Scale(Stage):
    """Multiplies a model's matrices, which is no learning at all."""

    name: str
    model: ModelSpec
    data: DataSpec
    factor: float = 2.0
    steps: int = 1
    evaluation: EvaluationSpec | None = None

    program = f"{__file__}:prepare"


class ScaleRuntime(StageRuntime):
    def __init__(self, stage: Scale, model: Any) -> None:
        self.stage, self.model, self.holders = stage, model, {}

    async def steps(self, start: int) -> AsyncGenerator[Step, None]:
        for index in range(start, self.stage.steps):
            for _, tensor in self.model.policy_weights():
                tensor.detach().mul_(self.stage.factor)
            yield Step(index, index + 1, {"scaled": self.stage.factor})


def prepare(stage: Scale, run: Any, models: Any, base: Path, context: Any) -> ScaleRuntime:
    return ScaleRuntime(stage, models.load(stage.model, ()))
