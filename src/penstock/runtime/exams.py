"""Evaluations that another process makes while training goes on: one at a time, each of one version of the weights."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.core.types import Group

Exam = Mapping[str, Any]
"""``step`` of the stage and the ``manifest`` of the weights to be evaluated."""
Answer = tuple[int, dict[str, float], Sequence[Group]]
"""The step, what was measured, and a few groups to look at."""


class Exams:
    """The evaluation that is under way, if any, and the answers that the learner has not heard yet."""

    def __init__(self) -> None:
        self._open: Exam | None = None
        self._answers: list[Answer] = []
        self._changed = asyncio.Condition()

    async def ask(self, exam: Exam) -> None:
        """Have weights evaluated; waits until the evaluation before is done, so that at most one is open."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._open is None)
            self._open = exam
            self._changed.notify_all()

    async def next(self) -> Exam:
        """The open evaluation; waits for one. It stays open until it is answered, whoever dies meanwhile."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._open is not None)
            assert self._open is not None
            return self._open

    async def answer(self, step: int, metrics: dict[str, float], groups: Sequence[Group]) -> None:
        """What was measured at ``step``. An answer to a question that is not open is passed over."""
        async with self._changed:
            if self._open is not None and self._open["step"] == step:
                self._answers.append((step, metrics, groups))
                self._open = None
                self._changed.notify_all()

    async def answers(self, wait: bool) -> list[Answer]:
        """Answers since the last call; ``wait`` until no evaluation is open."""
        async with self._changed:
            if wait:
                await self._changed.wait_for(lambda: self._open is None)
            found, self._answers = self._answers, []
            return found
