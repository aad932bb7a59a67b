"""Solutions judged step by step, as rows with the columns ``prompt``, ``steps`` and ``labels``; sources for process reward
models. Name them ``penstock.data.steps:math_shepherd`` or ``penstock.data.steps:prm800k`` with the option ``file``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.config.run import DataSpec
from penstock.core.errors import DataError
from penstock.data.rows import DataRow
from penstock.data.sources import open_source

MARK = "ки"
"""What follows every step in Math-Shepherd's ``input``; ``label`` has ``+`` or ``-`` in its place."""


def math_shepherd(file: str) -> list[dict[str, Any]]:
    """Rows of a file in the format of Math-Shepherd (Wang et al. 2023, arXiv 2312.08935): ``input`` and ``label``.

    Raises:
        DataError: a row is not of this format; names it.
    """
    return [_shepherd(row, f"{file} row {index}") for index, row in enumerate(_rows(file))]


def _shepherd(row: DataRow, where: str) -> dict[str, Any]:
    for name in ("input", "label"):
        if not isinstance(row.get(name), str):
            raise DataError(f'{where}: Math-Shepherd has the text "{name}" in every row, got {row.get(name)!r:.60}')
    pieces = row["input"].split(MARK)
    first = re.search(r"Step 1:", pieces[0])
    if len(pieces) < 2 or first is None:
        raise DataError(f'{where}: no "Step 1:" or no step marked with "{MARK}"; is this Math-Shepherd?')
    labels: list[float] = []
    rest = row["label"]
    for piece in pieces[:-1]:
        mark = rest[len(piece) : len(piece) + 1]
        if rest[: len(piece)] != piece or mark not in ("+", "-") or not mark:
            raise DataError(f"{where}: input and label do not agree on step {len(labels) + 1}")
        labels.append(float(mark == "+"))
        rest = rest[len(piece) + 1 :]
    steps = [pieces[0][first.start() :], *pieces[1:-1]]
    return {"prompt": pieces[0][: first.start()].strip() + "\n", "steps": [step.strip() for step in steps], "labels": labels}


def prm800k(file: str, neutral: float = 1.0) -> list[dict[str, Any]]:
    """Rows of a file in the format of PRM800K (Lightman et al. 2023, arXiv 2305.20050): ``question`` and ``label.steps``.

    Each judged completion becomes one row: the steps that were chosen before it, and itself. Only the last step of a row
    has a label, so that no judgement counts twice.

    Args:
        file: JSON lines.
        neutral: label of a completion rated 0; the paper counts it as right, 0.5 is on the fence.

    Raises:
        DataError: a row is not of this format; names it.
    """
    found: list[dict[str, Any]] = []
    for index, row in enumerate(_rows(file)):
        try:
            found += _judged(row, neutral)
        except (KeyError, TypeError, IndexError) as error:
            raise DataError(f"{file} row {index}: not of the format of PRM800K ({error!r})") from error
    if not found:
        raise DataError(f"{file}: no completion in it is rated")
    return found


def _judged(row: DataRow, neutral: float) -> Iterator[dict[str, Any]]:
    prompt = row["question"]["problem"] + "\n"
    before: list[str] = []
    for step in row["label"]["steps"]:
        for completion in step["completions"] or ():
            if completion["rating"] is not None and completion["text"]:
                label = {1: 1.0, 0: neutral, -1: 0.0}[completion["rating"]]
                steps = [*before, completion["text"]]
                yield {"prompt": prompt, "steps": steps, "labels": [*[None] * len(before), label]}
        chosen = _chosen(step)
        if not chosen:
            return
        before.append(chosen)


def _chosen(step: Mapping[str, Any]) -> str:
    """The text that the solution went on with: a human's, or one of the completions; empty where it stopped."""
    if step.get("human_completion"):
        return step["human_completion"]["text"]
    place = step["chosen_completion"]
    return "" if place is None else step["completions"][place]["text"]


def _rows(file: str) -> Sequence[DataRow]:
    source = open_source(DataSpec(source=file), Path.cwd())
    return [source[index] for index in range(len(source))]
