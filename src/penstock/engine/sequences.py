"""What the generator knows of each request: prefixes that are being prefilled, sequences that are being decoded."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

import numpy as np
from torch import Tensor

from penstock.core.types import FinishReason, IntArray, Sample, Version
from penstock.models.experts import ROUTES, Routes
from penstock.models.sequence_state import SequenceState
from penstock.models.text import Text


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
    routes: list[Routes] = field(default_factory=list)
    """Experts of the tokens that were read, as they were the first time; none where they are not noted."""

    def __post_init__(self) -> None:
        super().__post_init__()
        resume = self.request.resume
        if resume is not None and ROUTES in resume.columns:
            known = np.flatnonzero((resume.columns[ROUTES] >= 0).any((1, 2)))
            self.routes = [resume.columns[ROUTES][: known[-1] + 1]] if len(known) else []

    def read(self, routes: Routes) -> None:
        """Note the routes of a prefix, but for tokens that were read before."""
        self.routes.append(routes[sum(map(len, self.routes)) :])

    def sample(self, finish: FinishReason, text: Text) -> Sample:
        sample = super().sample(finish, text)
        if not self.routes:
            return sample
        return replace(sample, columns={**sample.columns, ROUTES: padded(self.routes, 0, len(sample.action_T))})

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
        self.shift = 0
        """By how much the position of a token after them is more than how many are before it."""
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
    since: Version = -1
    """The oldest weights that have read any of it."""
    logits_V: Tensor | None = None
    """Next-token logits after the last prefix token, once prefilled."""
    advantage_V: Tensor | None = None
    """Advantages of the next tokens by the model's Q heads, if it has any."""
    routes: list[Routes] = field(default_factory=list)
    """Experts of its tokens, as far as these were read here."""

    @property
    def tokens(self) -> IntArray:
        return self.before.tokens

    def restart(self) -> None:
        """Forget the cache: the weights under it are gone, and nobody reads it any more."""
        self.users, self.done, self.version, self.since = 0, 0, -1, -1
        self.logits_V, self.continued, self.routes = None, False, []


def padded(routes: list[Routes], before: int, length: int) -> Routes:
    """Routes of ``length`` tokens, of which the first ``before`` and those after the known ones are not known (-1)."""
    known = np.concatenate(routes)
    return np.pad(known, ((before, length - before - len(known)), (0, 0), (0, 0)), constant_values=-1)
