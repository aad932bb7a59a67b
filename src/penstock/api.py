"""Penstock from Python: run a spec, make data and rewards out of one's own functions. Imports nothing heavy until it trains."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.config.run import DataSpec, ModelSpec, RewardSpec, Run
from penstock.core.errors import DataError, SpecError
from penstock.data.held import held
from penstock.data.resolve import LOCAL, register
from penstock.envs.spec import EnvironmentSpec
from penstock.one_call import compose
from penstock.runtime import Result as Result
from penstock.runtime import launch
from penstock.runtime.folder import free_folder
from penstock.runtime.launching import AT_HAND

if TYPE_CHECKING:
    from penstock.runtime.preflight import CheckedStage

_LISTED: dict[str, Callable[[], list[dict[str, Any]]]] = {}


def train(
    model: Run | ModelSpec | str,
    *,
    folder: str | Path | None = None,
    resume: bool = False,
    take_over: bool = False,
    progress: bool = True,
    **fields: Any,
) -> Result:
    """Carry a run out, as ``penstock train`` does: one that is given, or one made of a model and what it is to learn from.

    - ``train(run)``
    - ``train(model, reward=function, prompts=texts_or_rows)``: GRPO, or ``algorithm=PPO()`` and the like
    - ``train(model, samples=texts_or_pairs, rewards=numbers)``: ILQL
    - ``train(model, preferences=rows)`` with ``prompt``, ``chosen``, ``rejected``: DPO
    - ``train(model, samples=texts_or_pairs)``: SFT

    Args:
        model: the spec of a run; or a folder, a hub name, a preset ("1m", "3m", "10m", built from scratch) or a ModelSpec.
        folder: where the run lives; None: ``runs/NAME``, numbered on if that is taken.
        resume: go on with the run in ``folder``. One that is finished is left as it is.
        take_over: take the run away from the process that is training in it, wherever that is: it ends before it writes again.
        progress: show it live.
        fields: what to learn from, as above; ``evaluation`` (held-out rows); how rows read (``chat=True``, templates as
            ``prompt="{{ question }}"``); any field of the run, of its stage or of a spec in it, by its own name (``steps=50,
            learning_rate=1e-4, max_new_tokens=64, seed=1``).

    Raises:
        PenstockError: anything you can mend; a run that has begun can be resumed.
        KeyboardInterrupt: Ctrl-C; everything up to the last finished step is saved.
    """
    from penstock.ui.progress import following
    from penstock.ui.report import write_report

    run = _run(model, fields)
    where = Path(folder) if folder is not None else free_folder(Path("runs"), run.name, exact=resume)
    with ExitStack() as showing:
        listeners = showing.enter_context(following(run)) if progress else []
        result = launch(replace(run, name=where.name), where, listeners, resume=resume, take_over=take_over)
    write_report(where)
    return result


def _run(model: Run | ModelSpec | str, fields: Mapping[str, Any]) -> Run:
    if isinstance(model, Run) and fields:
        raise SpecError(f"a run says everything itself; leave out {', '.join(fields)}, or use dataclasses.replace on the run")
    return model if isinstance(model, Run) else compose(model, fields, rows, reward)


def check(model: Run | ModelSpec | str, *, few: int = 3, progress: bool = True, **fields: Any) -> tuple[CheckedStage, ...]:
    """What ``train`` would do with the same arguments, tried on a few rows: how they read token by token, one step of each
    stage on them, and remarks on what should be mended. Leaves nothing on the disk.

    Args:
        few: rows of each stage.
        progress: print them.

    Raises:
        PenstockError: something is missing or does not fit.
    """
    from penstock.runtime.preflight import preflight
    from penstock.ui.preflight import show

    run = _run(model, {name: value for name, value in fields.items() if name not in ("folder", "resume", "take_over")})
    stages = tuple(preflight(run, Path.cwd(), few))
    if progress:
        show(stages)
    return stages


def reward(function: Callable[..., Any] | str, weight: float = 1.0, **fields: Any) -> RewardSpec:
    """A reward from a function (or the name of one): ``function(sample, columns) -> number``.

    ``columns`` is the prompt's data row. A function whose first parameter is called ``group`` gets the samples of a prompt
    together and gives a list. ``fields``: others of :class:`RewardSpec` (``name``, ``options``, ``deadline``).
    """
    name = function if isinstance(function, str) else register(function)
    return RewardSpec(function=name, weight=weight, **fields)


def environment(env: Callable[..., Any] | str, **fields: Any) -> EnvironmentSpec:
    """An environment of several turns from a class that derives from ``penstock.Env``, a function of a turn, or a name.

    ``fields``: others of :class:`~penstock.envs.spec.EnvironmentSpec` (``turns``, ``deadline``, ``history``, ``options``, …).
    """
    return EnvironmentSpec(function=env if isinstance(env, str) else register(env), **fields)


def rows(source: Callable[..., Any] | Iterable[Any] | Mapping[str, Any] | str | Path, **fields: Any) -> DataSpec:
    """Data from a function that returns rows, from rows at hand (a list, a table of pandas, polars or Arrow, a data set, a
    mapping of columns), or from what ``DataSpec.source`` names.

    ``fields``: others of :class:`DataSpec`, above all the templates ``prompt`` and ``completion``. Rows at hand live in this
    process only, unless the run has several (``runtime="procs"``), which find them in its folder; to go on with
    ``penstock train --resume``, put them into a function at the top level of a file.
    """
    if isinstance(source, str | Path):
        return DataSpec(source=str(source), **fields)
    if callable(source):
        return DataSpec(source=register(source), **fields)
    return DataSpec(source=register(_listed(held(source, "rows"))), **fields)


def _listed(given: list[Any]) -> Callable[[], list[dict[str, Any]]]:
    """A function that returns rows at hand. It is called after their content, so that equal rows make an equal spec."""
    for index, row in enumerate(given):
        if not isinstance(row, Mapping):
            raise DataError(f"rows: row {index} is {type(row).__name__}; a row must map column names to values")
    kept = [dict(row) for row in given]
    digest = hashlib.sha256(json.dumps(kept, sort_keys=True, default=repr).encode()).hexdigest()[:12]
    if digest not in _LISTED:

        def listed() -> list[dict[str, Any]]:
            return kept

        listed.__qualname__ = f"{AT_HAND.removeprefix(LOCAL)}{digest}"
        _LISTED[digest] = listed
    return _LISTED[digest]
