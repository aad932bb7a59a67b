"""Evaluations that another process makes while training goes on: one at a time, each of one version of the weights."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.core.errors import StreamError
from penstock.core.types import Group
from penstock.net import wire
from penstock.stream.verbs import verb

Answer = tuple[int, dict[str, float], Sequence[Group]]
"""The step, what was measured, and a few groups to look at."""

MAX_FAILURES = 3
"""Evaluators that may end on a request in a row; then it is taken for what ends them, and the run fails with its step."""


@wire.register
@dataclass(frozen=True)
class EvaluationRequest:
    """``step`` of the stage, and the ``manifest`` of the weights to be evaluated. ``number`` tells requests apart."""

    number: int
    step: int
    manifest: Mapping[str, Any]


class EvaluationQueue:
    """The request that is open, if any, and the answers that the learner has not heard yet."""

    def __init__(self, deadline: float, work: Callable[[], float] = lambda: 0.0) -> None:
        """``deadline`` is how many seconds a wait may last in which ``work``, a count of generated tokens, does not change."""
        self.deadline, self.work = deadline, work
        self._open: EvaluationRequest | None = None
        self._taken, self._failures = False, 0
        self._answers: list[Answer] = []
        self._number = 0
        self._changed = asyncio.Condition()

    async def ask(self, step: int, manifest: Mapping[str, Any]) -> None:
        """Have weights evaluated. Waits until the evaluation before is done, so that at most one is open.

        Raises:
            StreamError: that one was not answered within the deadline.
        """
        async with self._changed:
            await self._until_answered()
            self._number += 1
            self._open, self._taken, self._failures = EvaluationRequest(self._number, step, manifest), False, 0
            self._changed.notify_all()

    async def answers(self, wait: bool) -> list[Answer]:
        """Answers since the last call; ``wait`` until no evaluation is open. Raises as :meth:`ask` does."""
        async with self._changed:
            if wait:
                await self._until_answered()
            found, self._answers = self._answers, []
            return found

    async def cancel(self) -> None:
        """The learner is gone, and its weights with it: what it asked for is asked again by its successor."""
        async with self._changed:
            self._open, self._answers = None, []
            self._changed.notify_all()

    async def _until_answered(self) -> None:
        if not await self._comes(lambda: self._open is None):
            assert self._open is not None
            raise StreamError(f"waited {self.deadline:.0f} s for the evaluation of step {self._open.step} by the evaluator")

    async def _comes(self, ready: Callable[[], bool]) -> bool:
        before, now = -1.0, self.work()
        while now != before:
            try:
                async with asyncio.timeout(self.deadline):
                    await self._changed.wait_for(ready)
                return True
            except TimeoutError:
                before, now = now, self.work()
        return False

    # ---- the evaluator

    @verb(waits=True)
    async def next_evaluation(self, after: int) -> EvaluationRequest | None:
        """The open request with a number above ``after``; waits for one, None after the deadline. It stays open until it is
        answered, so that an evaluator that was started again is given it too."""
        async with self._changed:
            if not await self._comes(lambda: self._open is not None and self._open.number > after):
                return None
            self._taken = True
            return self._open

    @verb()
    async def answer(self, number: int, metrics: dict[str, float], groups: Sequence[Group]) -> None:
        """What was measured for a request. An answer to one that is not open any more is ignored."""
        async with self._changed:
            if self._open is not None and self._open.number == number:
                self._answers.append((self._open.step, metrics, groups))
                self._open = None
                self._changed.notify_all()

    def evaluator_left(self) -> None:
        """An evaluator is gone. Raises StreamError where one after the other ended on the same request."""
        if self._open is None or not self._taken:
            return
        self._taken, self._failures = False, self._failures + 1
        if self._failures >= MAX_FAILURES:
            raise StreamError(
                f"{self._failures} evaluators in a row ended on the evaluation of step {self._open.step}; see its log"
            )
