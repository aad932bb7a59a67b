"""Tasks of the reasoning-gym package: rows made from a seed, and the task's own scorer. Its only home."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from penstock.config.run import DataSpec
from penstock.config.spec import suggestion
from penstock.core.errors import DataError, blame
from penstock.data.rows import DataRow, Rows


def _package() -> Any:
    try:
        import reasoning_gym
    except ImportError as error:
        raise DataError("gym tasks need the reasoning-gym package; run: pip install penstock[gym]") from error
    return reasoning_gym


class GymRows:
    """Rows of one task with the columns question, answer, metadata, task and entry; each is made when first asked for."""

    def __init__(self, task: str, made: Any) -> None:
        self._task, self._made = task, made
        self._rows: dict[int, DataRow] = {}

    def __len__(self) -> int:
        return len(self._made)

    def __getitem__(self, place: int) -> DataRow:
        if place not in self._rows:
            with blame(DataError, f"gym:{self._task} row {place}"):
                entry = self._made[place]
            columns = {column: entry.get(column) for column in ("question", "answer", "metadata")}
            self._rows[place] = {**columns, "task": self._task, "entry": entry}
        return self._rows[place]


def open_gym(spec: DataSpec, task: str, base: Path) -> Rows:
    """``spec.size`` rows of a task after the first ``spec.skip``; ``options`` go to the task, ``seed`` (0) among them.

    Raises:
        DataError: the package is missing, no such task, no size, or options that the task refuses.
    """
    if spec.size < 1:
        raise DataError(f"gym:{task}: a gym task has no end; set data.size to the number of rows")
    _check_task(task)
    options = {"seed": 0, **spec.options}
    with blame(DataError, f"gym:{task} with options {options}"):
        made = _package().create_dataset(task, size=spec.skip + spec.size, **options)
    return Rows.of(spec, task, GymRows(task, made))


def gym_entry(task: str, seed: int, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """The one entry (question, answer, metadata) that a task makes of a seed. Raises DataError: see :func:`open_gym`."""
    _check_task(task)
    with blame(DataError, f"gym:{task} with options {dict(options)}"):
        entry: Mapping[str, Any] = _package().create_dataset(task, size=1, seed=seed, **options)[0]
    return entry


def _check_task(task: str) -> None:
    _package()
    from reasoning_gym.factory import DATASETS

    if task not in DATASETS:
        raise DataError(f'gym:{task}: there is no task "{task}"{suggestion(task, sorted(DATASETS))}')


@functools.cache
def _scorer(task: str) -> Callable[[str, Mapping[str, Any]], float]:
    _check_task(task)
    return _package().get_score_answer_fn(task)


def gym_score(task: str, answer: str, entry: Mapping[str, Any]) -> float:
    """The task's own score, 0 to 1, of an answer to the row's ``entry``."""
    return float(_scorer(task)(answer, entry))
