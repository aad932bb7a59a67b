"""Environments of one turn, or of several: a function answers what the policy wrote, until it has nothing more to say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.core.errors import EnvError, PenstockError
from penstock.core.types import IntArray, Sample
from penstock.sandbox.threads import DeadlineError, StuckError, Threads, bounded, is_asynchronous

TurnFunction = Callable[..., Any]
"""``(sample, columns, turn) -> str or None``, plain or ``async``: what the environment says to the policy's latest turn, which
counts from 0, or None where the episode is over. ``sample.text`` is that turn's text; ``columns`` is the prompt's data row."""


@dataclass(frozen=True)
class Dialogue:
    """What all episodes of a stage have in common. Plain functions run in ``threads``; the deadline of a call
    counts from when one begins to work on it."""

    name: str
    function: TurnFunction
    encode: Callable[[str], Sequence[int]]
    threads: Threads
    turns: int
    deadline: float


class Turns:
    """One episode, of a single turn where there is no dialogue: a prompt, an answer, done.

    Single-use: ``reset`` once, then ``step`` after each of the policy's turns.

    Raises:
        EnvError: the prompt has no tokens, or the verbs are called in another order; or the function raised, took longer than
            its deadline, or gave neither text nor None, which names it and the turn.
        StuckError: so many calls never came back that the run has to stop.
    """

    def __init__(self, tokens_T: IntArray, dialogue: Dialogue | None = None, columns: Mapping[str, Any] | None = None) -> None:
        if len(tokens_T) == 0:
            raise EnvError("a prompt needs at least one token; check the prompt template")
        self.tokens_T, self.dialogue, self.columns = np.asarray(tokens_T, np.int32), dialogue, dict(columns or {})
        self._turns = 1 if dialogue is None else dialogue.turns
        self._turn = -1
        self.more = self._turns > 1

    def reset(self) -> IntArray:
        """The prompt's tokens."""
        if self._turn >= 0:
            raise EnvError("an environment is single-use; make a new one for every sample")
        self._turn = 0
        return self.tokens_T

    async def step(self, sample: Sample) -> IntArray | None:
        """Tokens that the environment says next; None where the episode is over or has had its turns."""
        if not 0 <= self._turn < self._turns:
            raise EnvError(f"step was called on {'an unasked' if self._turn < 0 else 'a finished'} prompt; call reset first")
        turn, self._turn = self._turn, self._turn + 1
        self.more = self._turn + 1 < self._turns
        if self.dialogue is None or self._turn == self._turns:
            return None
        dialogue = self.dialogue
        said = await self._ask(dialogue, sample, turn)
        if said is None:
            return None
        if not isinstance(said, str):
            raise EnvError(_failed(dialogue, turn, f"gave {type(said).__name__}", "return text, or None to end the episode"))
        tokens = dialogue.encode(said)
        if not tokens:
            raise EnvError(_failed(dialogue, turn, "said nothing", "return None to end the episode"))
        return np.asarray(tokens, np.int32)

    async def _ask(self, dialogue: Dialogue, sample: Sample, turn: int) -> Any:
        function, deadline = dialogue.function, dialogue.deadline
        try:
            if is_asynchronous(function):
                return await bounded(function(sample, self.columns, turn), deadline)
            return await dialogue.threads.run(lambda: function(sample, self.columns, turn), deadline)
        except StuckError as error:
            raise StuckError(f'environment "{dialogue.name}": {error}') from error
        except DeadlineError:
            raise EnvError(_failed(dialogue, turn, f"took longer than {deadline:g} s", "raise environment.deadline")) from None
        except PenstockError as error:
            raise EnvError(_failed(dialogue, turn, "failed", str(error))) from error
        except Exception as error:
            raise EnvError(_failed(dialogue, turn, f"raised {type(error).__name__}", str(error))) from error


def _failed(dialogue: Dialogue, turn: int, what: str, detail: str) -> str:
    return f'environment "{dialogue.name}" {what} in turn {turn + 1}: {detail}'
