"""What was generated for one request so far, and when it is over: the same for every engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.errors import ContextFull, GenerationError
from penstock.core.types import FinishReason, OnToken, Request, Sample, Version
from penstock.models.text import Text
from penstock.models.unfold import Unfolding


def require_room(request: Request, context: int) -> None:
    """Raises GenerationError for a prompt that is empty, ContextFull where none of ``context`` tokens is left for an answer."""
    length = len(request.tokens_T)
    if length == 0:
        raise GenerationError(f"{request.key}: the prompt has no tokens; give at least one (for example an end token)")
    if length >= context:
        raise ContextFull(
            f"{request.key}: the prompt has {length} tokens and the model's context is {context}; "
            f"shorten the prompt or use a model with a longer context"
        )


@dataclass(eq=False, kw_only=True)
class SequenceState:
    """The tokens generated so far with their log-probs and versions; begins with those that a resumed request brings."""

    request: Request
    limit: int
    """New tokens at most, after the context's limit."""
    stop_tokens: frozenset[int] = frozenset()
    tokens: list[int] = field(default_factory=list)
    logps: list[float] = field(default_factory=list)
    versions: list[Version] = field(default_factory=list)
    on_token: OnToken | None = None
    """Called with every token as it is generated."""
    prompt_columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """Columns of the prompt's tokens, 0 for generated ones."""
    _text: Unfolding | None = None
    """The text so far, where stop strings are looked for."""

    def __post_init__(self) -> None:
        resume = self.request.resume
        if resume is not None:
            action = resume.action_T
            self.tokens = [int(t) for t in resume.tokens_T[action]]
            self.logps = [float(x) for x in resume.logp_T[action]]
            self.versions = [int(v) for v in resume.version_T[action]]

    def append(self, token: int, logp: float, version: Version) -> None:
        self.tokens.append(token)
        self.logps.append(logp)
        self.versions.append(version)
        if self.on_token is not None:
            self.on_token(token, logp, version)

    def finish_reason(self, text: Text) -> FinishReason | None:
        """Why the sample is over now, or None."""
        if self.tokens and self.tokens[-1] in self.stop_tokens:
            return "stop"
        if self.request.sampling.stop and self._at_stop_string(text):
            return "stop"
        return "length" if len(self.tokens) >= self.limit else None

    def _at_stop_string(self, text: Text) -> bool:
        """Whether the completion has a stop string; looks at the tokens that have come since it was last asked."""
        if self._text is None:
            self._text = Unfolding(text, self.request.sampling.stop)
        self._text.add(self.tokens[len(self._text.places) :])
        return self._text.stopped

    def sample(self, finish: FinishReason, text: Text) -> Sample:
        """The sample so far. Tokens stay as generated; the text ends before a stop string or stop token."""
        prompt, generated = len(self.request.tokens_T), len(self.tokens)
        body = self.tokens[:-1] if self.tokens and self.tokens[-1] in self.stop_tokens else self.tokens
        stops = self.request.sampling.stop
        marked = None if text.special_ids.isdisjoint(body) else _before(text.raw(body), stops)
        tokens_T = np.concatenate([self.request.tokens_T, np.asarray(self.tokens, np.int32)]).astype(np.int32)
        more = {name: np.pad(column, (0, generated)) for name, column in self.prompt_columns.items()}
        return Sample(
            key=self.request.key,
            columns={"tokens_T": tokens_T, **more},
            action_T=np.arange(prompt + generated) >= prompt,
            logp_T=np.concatenate([np.zeros(prompt), self.logps]).astype(np.float32),
            version_T=np.concatenate([np.full(prompt, -1), self.versions]).astype(np.int32),
            finish=finish,
            text=_before(text.decode(body), stops),
            blobs=self.request.blobs,
            marked=marked,
        )


def _before(text: str, stops: Sequence[str]) -> str:
    """What comes before the first stop string."""
    return text[: min([at for stop in stops if (at := text.find(stop)) >= 0], default=None)]
