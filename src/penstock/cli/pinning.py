"""Data that grows, pinned when a run begins: what its spec says then is what a resume reads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.core.run import DataSpec, Run

GROWING = "feedback:"
PINS = ("until", "content")


def pinned(run: Run, base: Path, kept: Run | None = None) -> Run:
    """The run with its feedback sources pinned: to where ``kept``, the run as it was begun, has them, or to now.

    Raises:
        DataError: a store cannot be read.
    """
    stages = []
    for stage in run.stages:
        before = next((other for other in kept.stages if other.name == stage.name), None) if kept else None
        stage = replace(stage, data=_pinned(stage.data, base, before.data if before else None))
        if stage.evaluation is not None:
            then = before.evaluation.data if before and before.evaluation else None
            stage = replace(stage, evaluation=replace(stage.evaluation, data=_pinned(stage.evaluation.data, base, then)))
        stages.append(stage)
    return run if tuple(stages) == run.stages else replace(run, stages=tuple(stages))


def _pinned(data: DataSpec, base: Path, kept: DataSpec | None) -> DataSpec:
    if not data.source.startswith(GROWING) or "content" in data.options:
        return data
    if kept is not None:
        pins: dict[str, Any] = {name: kept.options[name] for name in PINS if name in kept.options}
        if replace(data, options={**data.options, **pins}) == kept:
            return kept
    from penstock.feedback.source import pin

    return pin(data, base)
