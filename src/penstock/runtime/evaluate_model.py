"""A model, measured on the held-out prompts and rewards of a stage's evaluation."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from penstock.config.run import Run
from penstock.config.stage import Stage
from penstock.core.errors import SpecError
from penstock.runtime.build import Models
from penstock.runtime.context import in_one_process
from penstock.runtime.folder import RunFolder
from penstock.runtime.stages import prepare
from penstock.train.device import set_up


def pick(made: Run, name: str) -> Stage:
    """The stage to evaluate with: an online one, or one whose evaluation names rewards of generated samples."""
    able = [s for s in made.stages if s.pinned and s.evaluation is not None and (s.uses_stream or s.evaluation.rewards)]
    chosen = [stage for stage in able if stage.name == name] if name else able[-1:]
    if not chosen:
        known = ", ".join(stage.name for stage in able)
        if not known:
            raise SpecError("no stage has an evaluation of samples; set evaluation=EvaluationSpec(data=…) in the recipe")
        raise SpecError(f"no stage{f' {name!r}' if name else ''} with an evaluation of samples; there are: {known}")
    return chosen[0]


def measure(stage: Stage, made: Run, folder: Path, model: str) -> tuple[dict[str, float], Sequence[Any]]:
    """Metrics and groups of one evaluation."""
    device = set_up(made.device, made.threads)
    models = Models(lambda name: RunFolder(folder).stage_model(made, name), device, made.seed)
    ready = prepare(replace(cast(Any, stage), model=replace(stage.model, path=model)), in_one_process(made), models, Path.cwd())

    async def once() -> tuple[dict[str, float], Sequence[Any]]:
        try:
            assert ready.evaluate is not None
            return await ready.evaluate()
        finally:
            await ready.close()

    return asyncio.run(once())
