"""What the generator knows of each request: prefixes that are being prefilled, sequences that are being decoded."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from torch import Tensor

from penstock.core.types import Sample, Version
from penstock.models.sequence_state import SequenceState


@dataclass(eq=False, kw_only=True)
class Sequence(SequenceState):
    """One request on its way through the engine."""

    future: asyncio.Future[Sample]
    prefix: Prefix | None = None
    """Whose cache a running sequence reads."""
    own: int = 0
    """Tokens generated since the prefix; those before the last are in the sequence's own cache row."""

    def append(self, token: int, logp: float, version: Version) -> None:
        self.own += 1
        super().append(token, logp, version)


@dataclass(eq=False)
class Prefix:
    """Tokens that are prefilled once for all ``members`` that begin with them."""

    tokens: tuple[int, ...]
    members: list[Sequence]
    """Sequences that wait to begin."""
    row: int = -1
    users: int = 0
    """Running sequences that read this prefix; its row stays as long as there are any."""
    done: int = 0
    version: Version = -1
    logits_V: Tensor | None = None
    """Next-token logits after the last prefix token, once prefilled."""
    advantage_V: Tensor | None = None
    """Advantages of the next tokens by the model's Q heads, if it has any."""

    def restart(self) -> None:
        """Forget the cache: the weights under it are gone, and nobody reads it any more."""
        self.users, self.done, self.version, self.logits_V = 0, 0, -1, None
