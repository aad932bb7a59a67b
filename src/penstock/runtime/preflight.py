"""What a careful person looks at before a run: a few rows of each stage as template, tokenizer, reward and loss see them."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from penstock.config.run import Run
from penstock.core.types import Metrics
from penstock.models.files import save_model
from penstock.observe.first_rows import FirstRow, remarks_on_behaviour, remarks_on_rows, remarks_on_samples, rows_of_samples
from penstock.runtime.build import Models
from penstock.runtime.check import check_stages, named
from penstock.runtime.context import in_one_process
from penstock.runtime.local import alongside
from penstock.runtime.pinning import asked
from penstock.runtime.stages import StageRuntime, prepare
from penstock.train.device import set_up


@dataclass(frozen=True)
class CheckedStage:
    """A stage after one step on a few rows, or none where it was passed over; ``remarks`` say what should be mended."""

    name: str
    rows: tuple[FirstRow, ...]
    metrics: Metrics
    remarks: tuple[str, ...]


def preflight(run: Run, base: Path, rows: int = 3) -> Iterator[CheckedStage]:
    """Carry out one step of each stage on a few prompts or rows, in this process, and say what was seen.

    Later stages start from what earlier ones have become. Nothing is left on the disk. What people are asked is passed over,
    and so are stages whose rows they have yet to give, and those without data or with a program of their own.

    Raises:
        PenstockError: something is missing or does not fit; names the stage.
    """
    check_stages(run, base)
    run, device = in_one_process(run), set_up(run.device, run.threads)
    with tempfile.TemporaryDirectory() as folder:
        models = Models(lambda name: Path(folder) / name, device, run.seed)
        for stage in run.stages:
            if stage.asks or stage.program or not stage.sources or stage.data.source in asked(run, stage):
                yield CheckedStage(stage.name, (), {}, ())
                continue
            with named(stage.name):
                made = prepare(shortened(stage, rows), run, models, base)
                yield asyncio.run(checked(stage, made, rows))
                save_model(made.model, Path(folder) / stage.name)


def shortened(stage: Any, rows: int) -> Any:
    """The stage as one step on a few rows."""
    ones, none = ("minibatches", "epochs", "max_uses"), ("max_lag", "oversample", "dynamic_sampling")
    once = dict.fromkeys(ones, 1) | dict.fromkeys(none, 0) | {"on_stale": "wait"}
    return replace(stage, steps=1, batch=rows, evaluation=None, **(once if stage.uses_stream else {}))


async def checked(stage: Any, made: StageRuntime, rows: int) -> CheckedStage:
    """The rows of a stage before its first step, and what that step measured."""
    try:
        found = made.first_rows(rows, scored=True)
        async with alongside(*made.background()), aclosing(made.steps(0)) as steps:
            step = await anext(steps)
    finally:
        await made.close()
    text, path = made.model.text, stage.model.path
    said = [*made.remarks, *remarks_on_rows(found), *remarks_on_samples(step, made.bounds)]
    if path and not path.startswith("@"):  # what a model says that nobody has trained yet tells nothing
        said += remarks_on_behaviour(step)
    return CheckedStage(stage.name, tuple(found or rows_of_samples(step.seen, text)), step.metrics, tuple(said))
