"""The simplest environment: a prompt, one action, done."""

from __future__ import annotations

import numpy as np

from penstock.core.errors import EnvError
from penstock.core.types import IntArray, Sample


class SingleTurn:
    """One prompt, given as tokens, answered once. Single-use: ``reset`` once, then ``step`` once.

    Raises:
        EnvError: the prompt has no tokens, or the verbs are called in another order.
    """

    def __init__(self, tokens_T: IntArray) -> None:
        if len(tokens_T) == 0:
            raise EnvError("a prompt needs at least one token; check the prompt template")
        self._tokens_T = np.asarray(tokens_T, np.int32)
        self._state = "new"

    def reset(self) -> IntArray:
        """The prompt's tokens."""
        if self._state != "new":
            raise EnvError("an environment is single-use; make a new one for every sample")
        self._state = "asked"
        return self._tokens_T

    async def step(self, sample: Sample) -> IntArray | None:
        """None: one action ends the episode."""
        if self._state != "asked":
            raise EnvError(
                f"step was called on {'a finished' if self._state == 'done' else 'an unasked'} prompt; call reset first"
            )
        self._state = "done"
        return None
