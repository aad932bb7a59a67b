"""Data that grows, pinned when a run begins: what its spec says then is what a resume reads.

What an earlier stage of the run itself asks for is not there then; it is pinned when the stage that reads it begins, in
``pins.json`` in the run's folder.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from penstock.config.ask import OWN_STORE
from penstock.config.run import DataSpec, Run
from penstock.config.stage import Stage
from penstock.core.files import write_json

GROWING = "feedback:"
PINS = ("until", "at", "content")


def pinned(run: Run, base: Path, kept: Run | None = None) -> Run:
    """The run with its feedback sources pinned: to where ``kept``, the run as it was begun, has them, or to now.

    Raises:
        DataError: a store cannot be read.
    """
    begun = {stage.name: stage for stage in kept.stages} if kept else {}
    stages = tuple(_as_begun(stage, begun.get(stage.name), run, base) if stage.pinned else stage for stage in run.stages)
    return run if stages == run.stages else replace(run, stages=stages)


def _as_begun(stage: Stage, begun: Stage | None, run: Run, base: Path) -> Stage:
    later = asked(run, stage)

    def change(data: DataSpec, what: str) -> DataSpec:
        then = begun.evaluation if begun and what == "evaluation" else begun
        return _pinned(data, base, then.data if then else None, later)

    return _with_data(stage, change)


def asked(run: Run, stage: Stage) -> set[str]:
    """The sources that stages before this one fill with votes."""
    names = [other.name for other in run.stages]
    earlier = run.stages[: names.index(stage.name)]
    return {GROWING + other.asks for other in earlier if other.asks}


def settled(stage: Stage, run: Run, base: Path, folder: Path) -> Stage:
    """The stage with data that the run itself has asked for pinned: to where it was when the stage was first begun, or to now.

    Raises:
        DataError: the store gives no rows, or others than when the stage was first begun.
    """
    if not stage.pinned or not asked(run, stage):
        return stage
    path = folder / "pins.json"
    pins: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

    def pinned_here(data: DataSpec, what: str) -> DataSpec:
        if data.source not in asked(run, stage):
            return data
        from penstock.product.source import pin

        if data.source == GROWING + OWN_STORE:
            data = replace(data, source=f"{GROWING}{(folder / 'feedback.db').resolve()}", name=data.name or "feedback")
        known = pins.get(f"{stage.name}.{what}")
        data = replace(data, options={**data.options, **known}) if known else pin(data, base)
        pins[f"{stage.name}.{what}"] = {name: data.options[name] for name in PINS if name in data.options}
        return data

    made = _with_data(stage, pinned_here)
    write_json(path, pins)
    return made


def _with_data(stage: Stage, change: Callable[[DataSpec, str], DataSpec]) -> Stage:
    """The stage with the data that it reads and those of its evaluation changed."""
    made: Any = replace(cast(Any, stage), data=change(stage.data, "data"))
    if made.evaluation is not None:
        made = replace(made, evaluation=replace(made.evaluation, data=change(made.evaluation.data, "evaluation")))
    return cast(Stage, made)


def _pinned(data: DataSpec, base: Path, kept: DataSpec | None, later: set[str]) -> DataSpec:
    if not data.source.startswith(GROWING) or "content" in data.options or data.source in later:
        return data
    if kept is not None:
        pins: dict[str, Any] = {name: kept.options[name] for name in PINS if name in kept.options}
        if replace(data, options={**data.options, **pins}) == kept:
            return kept
    from penstock.product.source import pin

    return pin(data, base)
