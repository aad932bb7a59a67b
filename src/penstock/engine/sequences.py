"""What the generator knows of each request: prefixes that are being prefilled, sequences that are being decoded."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from penstock.core.types import FinishReason, OnToken, Request, Sample, Version
from penstock.models.text import Text


@dataclass(eq=False)
class Sequence:
    """One request on its way: the tokens drawn so far with their log-probs and versions."""

    request: Request
    limit: int
    """New tokens at most, after the context's limit."""
    future: asyncio.Future[Sample]
    tokens: list[int] = field(default_factory=list)
    logps: list[float] = field(default_factory=list)
    versions: list[Version] = field(default_factory=list)
    stop_tokens: frozenset[int] = frozenset()
    on_token: OnToken | None = None
    """Told of every token as it is drawn."""
    prefix: Prefix | None = None
    """Whose cache a running sequence reads."""
    own: int = 0
    """Tokens drawn since the prefix; those before the last are in the sequence's own cache row."""

    def __post_init__(self) -> None:
        resume = self.request.resume
        if resume is not None:
            action = resume.action_T
            self.tokens = [int(t) for t in resume.tokens_T[action]]
            self.logps = [float(x) for x in resume.logp_T[action]]
            self.versions = [int(v) for v in resume.version_T[action]]

    def append(self, token: int, logp: float, version: Version) -> None:
        self.tokens.append(token)
        self.own += 1
        self.logps.append(logp)
        self.versions.append(version)
        if self.on_token is not None:
            self.on_token(token, logp, version)

    def finish_reason(self, text: Text) -> FinishReason | None:
        """Why the sequence is over now, or None."""
        if self.tokens and self.tokens[-1] in self.stop_tokens:
            return "stop"
        if self.request.sampling.stop and self._stop_at(text) is not None:
            return "stop"
        return "length" if len(self.tokens) >= self.limit else None

    def _stop_at(self, text: Text) -> int | None:
        """Where the first stop string begins in the decoded completion, if one is there."""
        decoded = text.decode(self.tokens)
        found = [decoded.find(stop) for stop in self.request.sampling.stop]
        return min((at for at in found if at >= 0), default=None)

    def sample(self, finish: FinishReason, text: Text) -> Sample:
        """The sample so far. Tokens stay as drawn; the text ends before a stop string or stop token."""
        prompt, drawn = len(self.request.tokens_T), len(self.tokens)
        body = self.tokens[:-1] if self.tokens and self.tokens[-1] in self.stop_tokens else self.tokens
        decoded = text.decode(body)
        if self.request.sampling.stop and (cut := self._stop_at(text)) is not None:
            decoded = decoded[:cut]
        return Sample(
            key=self.request.key,
            tokens_T=np.concatenate([self.request.tokens_T, np.asarray(self.tokens, np.int32)]).astype(np.int32),
            action_T=np.arange(prompt + drawn) >= prompt,
            logp_T=np.concatenate([np.zeros(prompt), self.logps]).astype(np.float32),
            version_T=np.concatenate([np.full(prompt, -1), self.versions]).astype(np.int32),
            finish=finish,
            text=decoded,
        )


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
