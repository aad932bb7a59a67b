"""An environment of several turns: a function answers what the policy wrote, until it has nothing more to say."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.core.errors import EnvError
from penstock.core.types import IntArray, Sample

TurnFunction = Callable[..., Any]
"""``(sample, columns, turn) -> str or None``, plain or ``async``: what the environment says to the policy's latest turn, which
counts from 0, or None where the episode is over. ``sample.text`` is that turn's text; ``columns`` is the prompt's data row."""


@dataclass(frozen=True)
class Dialogue:
    """What all episodes of a stage have in common. Plain functions run in threads of ``executor``."""

    name: str
    function: TurnFunction
    encode: Callable[[str], Sequence[int]]
    executor: Executor
    turns: int
    deadline: float


class Turns:
    """One episode. Single-use: ``reset`` once, then ``step`` after each of the policy's turns.

    Raises:
        EnvError: the function raised, took longer than its deadline, or gave neither text nor None; names it and the turn.
    """

    def __init__(self, dialogue: Dialogue, tokens_T: IntArray, columns: Mapping[str, Any]) -> None:
        self.dialogue, self.tokens_T, self.columns = dialogue, tokens_T, dict(columns)
        self._turn = -1

    def reset(self) -> IntArray:
        """The prompt's tokens."""
        if self._turn >= 0:
            raise EnvError("an environment is single-use; make a new one for every sample")
        self._turn = 0
        return self.tokens_T

    async def step(self, sample: Sample) -> IntArray | None:
        """Tokens that the environment says next; None where the episode is over or has had its turns."""
        turn, self._turn = self._turn, self._turn + 1
        if self._turn >= self.dialogue.turns:
            return None
        said = await self._ask(sample, turn)
        if said is None:
            return None
        if not isinstance(said, str):
            raise EnvError(self._failed(turn, f"gave {type(said).__name__}", "return text, or None to end the episode"))
        tokens = self.dialogue.encode(said)
        if not tokens:
            raise EnvError(self._failed(turn, "said nothing", "return None to end the episode"))
        return np.asarray(tokens, np.int32)

    async def _ask(self, sample: Sample, turn: int) -> Any:
        function, deadline = self.dialogue.function, self.dialogue.deadline
        try:
            async with asyncio.timeout(deadline):
                if inspect.iscoroutinefunction(function):
                    return await function(sample, self.columns, turn)
                loop = asyncio.get_running_loop()
                return await loop.run_in_executor(self.dialogue.executor, function, sample, self.columns, turn)
        except TimeoutError:
            raise EnvError(self._failed(turn, f"took longer than {deadline:g} s", "raise environment.deadline")) from None
        except Exception as error:
            raise EnvError(self._failed(turn, f"raised {type(error).__name__}", str(error))) from error

    def _failed(self, turn: int, what: str, detail: str) -> str:
        return f'environment "{self.dialogue.name}" {what} in turn {turn + 1}: {detail}'
