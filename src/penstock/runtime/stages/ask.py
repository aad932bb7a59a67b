"""A stage that asks people; the extra ``feedback`` is needed only here."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

from penstock.config.ask import Ask
from penstock.config.run import Run
from penstock.loops.learn import Step
from penstock.runtime.asking import Asking, evaluated
from penstock.runtime.build import Models
from penstock.runtime.context import StageContext
from penstock.runtime.stages import Evaluation, StageRuntime


class AskRuntime(StageRuntime):
    """Asks, waits for votes, and goes on with the model that they let pass."""

    def __init__(self, asking: Asking) -> None:
        self.asking, self.holders, self.epoch = asking, {}, len(asking.source)
        self.evaluate = self._measure if asking.stage.evaluation else None

    @property
    def model(self):  # type: ignore[no-untyped-def, override]
        """Known once the votes are in."""
        return self.asking.model

    async def steps(self, start: int) -> AsyncGenerator[Step, None]:
        async with aclosing(self.asking.steps(start)) as asked:
            async for step in asked:
                yield step

    async def _measure(self) -> Evaluation:
        found: Evaluation = await evaluated(self.asking)
        return found


def prepare(stage: Ask, run: Run, models: Models, base: Path, context: StageContext) -> AskRuntime:
    """Load the policy that is asked about."""
    return AskRuntime(Asking(stage, run, models, base, context))
