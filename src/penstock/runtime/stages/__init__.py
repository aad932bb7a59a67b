"""Stages made ready: a spec becomes models, data and a loop that is an iterator of steps. One file for each kind of stage."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from penstock.config.run import Run
from penstock.config.stage import Stage
from penstock.core.contracts import Holder
from penstock.core.errors import SpecError
from penstock.core.types import Group, Metrics, Version
from penstock.data.resolve import resolve
from penstock.loops.learn import Step, Watcher
from penstock.models.families import Model
from penstock.models.files import save_model
from penstock.observe.first_rows import FirstRow
from penstock.observe.rules import EXACT, Thresholds
from penstock.runtime.build import Models
from penstock.runtime.context import NO_CONTEXT, StageContext

UNWATCHED = Watcher()

Evaluation = tuple[Metrics, Sequence[Group]]
Measure = Callable[[], Any]
"""``async () -> Evaluation``: measures the weights as they are."""


class Evaluations(Protocol):
    """Evaluations by another process, between the first and the last step, while training goes on."""

    async def ask(self, step: int) -> None: ...

    async def answers(self, wait: bool = False) -> list[Any]: ...

    async def settle(self, step: int) -> list[Any]: ...


class StageRuntime(ABC):
    """A stage that can be stepped through. What the session asks of one; each member but ``steps`` has a default."""

    model: Model
    """What later stages start from, once all steps are done."""
    holders: Mapping[str, Holder]
    """Everything that a checkpoint must hold."""
    evaluate: Measure | None = None
    elsewhere: Evaluations | None = None
    """Who evaluates while training goes on, if another process does."""
    epoch: int = 0
    """Units in one pass over the data."""
    remarks: Sequence[str] = ()
    """What should be mended, as far as it is known before the first step."""
    bounds: Thresholds = EXACT
    """How far rounding may bring learner and generator apart."""

    @property
    def watcher(self) -> Watcher:
        """What looks at each of its batches."""
        return UNWATCHED

    @abstractmethod
    def steps(self, start: int) -> AsyncGenerator[Step, None]:
        """Train from a step on; yields after each."""

    def background(self) -> list[Any]:
        """Coroutines that run alongside the steps."""
        return []

    def first_rows(self, count: int, scored: bool = False) -> list[FirstRow]:
        """The first rows of the data, ``scored`` by the model as it is; none where the stage makes its own."""
        return []

    @property
    def decode(self) -> Callable[..., str]:
        """Tokens of samples as text."""
        return self.model.text.decode

    def save(self, folder: Path) -> None:
        """Write the model that later stages start from; the folder is replaced whole."""
        save_model(self.model, folder)

    def acknowledge(self, version: Version | None = None) -> None:
        """A checkpoint of the weights of ``version`` is durable, or of all that was trained so far."""
        return None

    async def close(self) -> None:
        """End threads and processes of learner and rewards."""
        return None


Preparer = Callable[[Any, Run, Models, Path, StageContext], StageRuntime]


def prepare(stage: Stage, run: Run, models: Models, base: Path, context: StageContext = NO_CONTEXT) -> StageRuntime:
    """Load and build everything a stage needs; errors in data, models or rewards surface here.

    What does it is ``prepare`` in the file of this folder that has the stage's name, or what the stage names itself.

    Raises:
        PenstockError: anything that the user can mend.
    """
    if run.runtime != "local" and stage.uses_stream and context.bootstrap is None:
        raise SpecError(f'runtime="{run.runtime}" needs a supervisor (penstock.runtime.launch); here, set runtime="local"')
    made: Preparer = (
        resolve(stage.program, base)
        if stage.program
        else importlib.import_module(f"{__name__}.{type(stage).__name__.lower()}").prepare
    )
    return made(stage, run, models, base, context)
