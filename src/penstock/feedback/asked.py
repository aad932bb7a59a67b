"""The questions of one stage, written down before anybody is asked: a resume reads them and asks nothing twice."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.core.files import replaced
from penstock.feedback.errors import FeedbackError
from penstock.feedback.records import Item, Response, Task, canonical

DUEL = "duel"
"""Strategy of a pair of the judged policy (the first response) and the one it is judged against."""


@dataclass(frozen=True)
class Asked:
    """A question and what the reward models made of it before anybody answered.

    ``margins`` holds, for each of them, the score of the first response less that of the second; empty without reward models.
    """

    task: Task
    margins: tuple[float, ...] = ()

    @property
    def margin(self) -> float:
        """The mean margin; NaN without reward models."""
        return sum(self.margins) / len(self.margins) if self.margins else float("nan")


def write(asked: Sequence[Asked], path: Path) -> None:
    """Write questions, whole or not at all, durably: one JSON object a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replaced(path) as out:
        for one in asked:
            item = one.task.item
            responses = [response.plain() for response in item.responses]
            line = {"task": one.task.plain(), "item": item.plain(), "responses": responses, "margins": list(one.margins)}
            out.write(canonical(line) + "\n")


def read(path: Path) -> list[Asked]:
    """The questions of a file.

    Raises:
        FeedbackError: it is damaged, or a question is not what its name says.
    """
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines()):
        try:
            found.append(_asked(json.loads(line)))
        except (ValueError, KeyError, TypeError) as error:
            raise FeedbackError(f"{path} line {number + 1}: not a question ({error!r}); restore it from a backup") from error
    return found


def _asked(row: dict[str, Any]) -> Asked:
    item = Item(**{**row["item"], "responses": tuple(map(Response.of, row["responses"]))})
    if item.id != row["task"]["item"]:
        raise ValueError(f"item {item.id[:12]} is not {row['task']['item'][:12]}")
    return Asked(Task.of(row["task"], item), tuple(row["margins"]))
