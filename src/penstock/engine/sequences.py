"""What the generator knows of each request: prefixes that are being prefilled, sequences that are being decoded."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from penstock.core.types import IntArray, Sample, Version
from penstock.models.sequence_state import SequenceState


@dataclass(eq=False, kw_only=True)
class Sequence(SequenceState):
    """One request on its way through the engine."""

    future: asyncio.Future[Sample]
    number: int = 0
    """Requests before it: who came last is preempted first."""
    before: Before | None = None
    """What is to be read before it goes on, while it waits."""
    prefix: Prefix | None = None
    """Whose cache a running sequence reads."""
    own: int = 0
    """Tokens generated since the prefix; those before the last are in the sequence's own cache row."""

    def tokens_so_far(self) -> IntArray:
        """The prompt and what was drawn."""
        return np.concatenate([self.request.tokens_T, np.asarray(self.tokens, np.int32)]).astype(np.int32)

    def append(self, token: int, logp: float, version: Version) -> None:
        self.own += 1
        super().append(token, logp, version)


class Before:
    """Tokens that are read before a sequence draws; equal ones are found by ``key``, whose hash is computed once."""

    def __init__(self, tokens: IntArray) -> None:
        self.tokens = np.ascontiguousarray(tokens, np.int32)
        self.key = self.tokens.tobytes()


@dataclass(eq=False)
class Prefix:
    """Tokens that are prefilled once for all ``members`` that begin with them."""

    before: Before
    members: list[Sequence]
    """Sequences that wait to begin."""
    row: int = -1
    users: int = 0
    """Running sequences that read this prefix; its row stays as long as there are any."""
    done: int = 0
    continued: bool = False
    """Whether it begins with a conversation that was kept: it may be older weights', so that nobody else is to join it."""
    version: Version = -1
    logits_V: Tensor | None = None
    """Next-token logits after the last prefix token, once prefilled."""
    advantage_V: Tensor | None = None
    """Advantages of the next tokens by the model's Q heads, if it has any."""

    @property
    def tokens(self) -> IntArray:
        return self.before.tokens

    def restart(self) -> None:
        """Forget the cache: the weights under it are gone, and nobody reads it any more."""
        self.users, self.done, self.version, self.logits_V, self.continued = 0, 0, -1, None, False
