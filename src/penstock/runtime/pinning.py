"""Data that grows, pinned when a run begins: what its spec says then is what a resume reads.

What an earlier stage of the run itself asks for is not there then; it is pinned when the stage that reads it begins, in
``pins.json`` in the run's folder.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from penstock.config.ask import OWN_STORE
from penstock.config.run import DataSpec, Run
from penstock.config.stage import Stage
from penstock.core.contracts import Source
from penstock.core.errors import DataError
from penstock.core.files import write_json
from penstock.data.sources import is_file, open_source

GROWING = "feedback:"
LOOKED_AT = 256
"""Rows of a file that are compared with those of the run's beginning."""
PINS = ("until", "at", "content")


def pinned(run: Run, base: Path, kept: Run | None = None) -> Run:
    """The run with its feedback sources pinned: to where ``kept``, the run as it was begun, has them, or to now.

    Raises:
        DataError: a store cannot be read.
    """
    before: dict[str, DataSpec] = {}
    for stage in kept.stages if kept else ():
        with_data(stage, lambda data, name: before.setdefault(name, data))

    def pinned_now(later: set[str], data: DataSpec, name: str) -> DataSpec:
        if not data.source.startswith(GROWING) or "content" in data.options or data.source in later:
            return data
        then = before.get(name)
        if then is not None and replace(data, options={**data.options, **pins_of(then)}) == then:
            return then
        from penstock.product.source import pin

        return pin(data, base)

    return replace(run, stages=tuple(with_data(stage, partial(pinned_now, asked(run, stage))) for stage in run.stages))


def with_data(stage: Stage, change: Callable[[DataSpec, str], DataSpec]) -> Stage:
    """A stage with the data that it trains and is evaluated on as ``change(data, name)`` gives it."""
    if not stage.pinned:
        return stage
    made: Any = replace(cast(Any, stage), data=change(stage.data, f"{stage.name}.data"))
    if made.evaluation is None:
        return cast(Stage, made)
    held_out = change(made.evaluation.data, f"{stage.name}.evaluation")
    return cast(Stage, replace(made, evaluation=replace(made.evaluation, data=held_out)))


def pins_of(data: DataSpec) -> dict[str, Any]:
    """Where data is pinned to."""
    return {name: data.options[name] for name in PINS if name in data.options}


def asked(run: Run, stage: Stage) -> set[str]:
    """The sources that stages before this one fill with votes."""
    names = [other.name for other in run.stages]
    earlier = run.stages[: names.index(stage.name)]
    return {GROWING + other.asks for other in earlier if other.asks}


def require_same_rows(stage: Stage, base: Path, folder: Path) -> None:
    """Note in ``pins.json`` what the files of a stage hold when it is first begun, and refuse to go on with other rows.

    Raises:
        DataError: a file has other rows than then: another number, or others among :data:`LOOKED_AT` spread over it.
    """
    path = folder / "pins.json"
    pins: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

    def checked(data: DataSpec, name: str) -> DataSpec:
        if is_file(data.source):
            now, then = fingerprint(open_source(data, base)), pins.get(f"rows of {name}")
            if then not in (None, now):
                raise DataError(
                    f"{data.source}: its rows are not those that the run began with; bring them back, or begin a new run"
                )
            pins[f"rows of {name}"] = now
        return data

    with_data(stage, checked)
    if pins:
        write_json(path, pins)


def fingerprint(rows: Source) -> str:
    """How many rows there are, and a hash of some of them."""
    places = sorted({round(place * (len(rows) - 1) / (LOOKED_AT - 1)) for place in range(LOOKED_AT)})
    digest = hashlib.blake2b(digest_size=16)
    for place in places:
        digest.update(json.dumps(dict(rows[place]), sort_keys=True, default=repr).encode() + b"\n")
    return f"{len(rows)} {digest.hexdigest()}"


def settled(stage: Stage, run: Run, base: Path, folder: Path) -> Stage:
    """The stage with data that the run itself has asked for pinned: to where it was when the stage was first begun, or to now.

    Raises:
        DataError: the store gives no rows, or others than when the stage was first begun.
    """
    if not stage.pinned or not asked(run, stage):
        return stage
    path, sources = folder / "pins.json", asked(run, stage)
    pins: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

    def pinned_here(data: DataSpec, name: str) -> DataSpec:
        if data.source not in sources:
            return data
        from penstock.product.source import pin

        if data.source == GROWING + OWN_STORE:
            data = replace(data, source=f"{GROWING}{(folder / 'feedback.db').resolve()}", name=data.name or "feedback")
        data = replace(data, options={**data.options, **pins[name]}) if name in pins else pin(data, base)
        pins[name] = pins_of(data)
        return data

    made = with_data(stage, pinned_here)
    write_json(path, pins)
    return made
