"""The embedded generator: the inference contract over the pooled cache.

``step`` is the whole engine: admit, prefill a chunk, fork prefixes into rows, decode one token for every row, let the
finished go. Between two steps weights may change.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection

import numpy as np
import torch
from torch import Tensor

from penstock.core.errors import GenerationError, ModelError
from penstock.core.types import (
    CachePolicy,
    FloatArray,
    GeneratorStats,
    IntArray,
    OnToken,
    Request,
    Sample,
    SampleKey,
    Version,
)
from penstock.engine.sequences import Sequence
from penstock.engine.turn import Engine
from penstock.models.attention import single_row_plan
from penstock.models.language_model import LanguageModel
from penstock.models.sequence_state import require_room


class EmbeddedGenerator(Engine):
    """Implements the ``Generator`` contract in this process.

    ``max_running``, ``chunk``, ``cache_gb`` and ``routes`` are :class:`Engine`'s; ``queue`` bounds the requests that may wait
    (more are refused).
    """

    def __init__(
        self, model: LanguageModel, *, max_running: int = 128, chunk: int = 2048, queue: int = 1 << 16, cache_gb: float = 0.0,
        version: Version = 0, routes: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(model, max_running, chunk, cache_gb, version, routes)
        self.queue = queue
        self._entered = 0

    # ---- the contract

    async def generate(self, request: Request, on_token: OnToken | None = None) -> Sample:
        """Draw one sample, telling ``on_token`` of each token. Requests with equal tokens that wait together share one prefill.

        Raises:
            GenerationError: the prompt is empty or does not fit the context, or too many requests wait.
        """
        if not self._open.is_set():
            self._drop_cancelled()  # which is a step's work otherwise
        sequence = self.sequence(request)
        sequence.on_token = on_token
        if sequence.finish_reason(self.text) is not None:
            return sequence.sample(sequence.finish_reason(self.text) or "length", self.text)
        self.enter(sequence)
        self._drive()
        return await sequence.future

    def enter(self, sequence: Sequence) -> None:
        """Let a sequence take part from the next turn on."""
        self._entered += 1
        sequence.number = self._entered
        self.tape.submit(sequence.request.key)
        self.waiting.append(sequence)

    async def score(self, tokens_T: IntArray, temperature: float = 1.0, prompt: int | None = None) -> FloatArray:
        """Log-prob of every token after the first ``prompt`` (1), given those before it, and 0 for these.

        Temperature 0 counts as 1, as in ``generate``.
        """
        if len(tokens_T) > self.model.context:
            raise GenerationError(f"{len(tokens_T)} tokens do not fit the context of {self.model.context}")
        with torch.no_grad():
            tokens = torch.as_tensor(np.asarray(tokens_T, np.int64), device=self.model.device)
            logits = self.model.logits(self._hidden_before(tokens, prompt)) / (temperature or 1.0)
            first = len(tokens) - len(logits)
            logp = logits.log_softmax(-1).gather(-1, tokens[first:, None]).squeeze(-1)
        scored_T = np.concatenate([np.zeros(first), logp.cpu().numpy()]).astype(np.float32)
        scored_T[: prompt or 1] = 0.0
        return scored_T

    def _hidden_before(self, tokens: Tensor, prompt: int | None) -> Tensor:
        """The hidden states from which the last tokens of ``[T]`` are drawn: at least those after the first ``prompt``."""
        position = torch.arange(len(tokens), device=self.model.device)
        return self.model.hidden(tokens[None], position[None], single_row_plan(len(tokens), self.model.device))[0, :-1]

    async def abort(self, keys: Collection[SampleKey]) -> list[Sample]:
        """Stop the named samples wherever they are; gives what was generated so far, fit to resume from.

        What was kept of them between two turns is given up.
        """
        wanted = set(keys)
        found = [s for s in self._all() if s.request.key in wanted]
        self._remove(found)
        for key in keys:
            self.forget(key)
        return [self._finish(sequence, "abort") for sequence in found]

    def forget(self, key: SampleKey) -> None:
        """Give up what was kept of a conversation."""
        if self.memory.forget(key):
            self.tape.note("forget", [*key.prompt, key.sample])

    def stats(self) -> GeneratorStats:
        used = sum(s.own for s in self.running) + sum(p.done for p in self.prefixes)
        room = sum(pool.rows * pool.positions for pool in (self.prefix_cache, self.own_cache))
        return GeneratorStats(
            version=self.version,
            running=len(self.running),
            waiting=len(self.waiting) + sum(len(p.members) for p in self.prefixes),
            cache_use=used / max(1, room),
            generated_tokens=self.generated_tokens,
            busy_seconds=self.busy_seconds,
            prefilled_tokens=self.prefilled_tokens,
            reused_tokens=self.reused_tokens,
        )

    # ---- requests in and out

    def sequence(self, request: Request) -> Sequence:
        """A request that has been looked at, not under way yet. Raises GenerationError for one that cannot be answered."""
        require_room(request, self.model.context)
        try:
            columns = self.text.media_columns(request.tokens_T, request.blobs)
        except ModelError as error:
            raise GenerationError(f"{request.key}: {error}") from error
        if request.sampling.beta and self.model.q_heads is None:
            raise GenerationError(f"{request.key}: beta={request.sampling.beta} needs Q heads, which ILQL trains; use beta=0")
        if len(self.waiting) >= self.queue:
            raise GenerationError(f"{request.key}: {self.queue} requests are waiting already")
        prompt = len(request.tokens_T)
        limit = min(request.sampling.max_new_tokens, self.model.context - prompt)
        if (needed := self.memory.needed(prompt + limit)) > self.memory.budget:
            raise GenerationError(
                f"{request.key}: {prompt} prompt tokens and {limit} new ones need up to {needed / 1e9:.3g} GB of cache and "
                f"{self.memory.budget / 1e9:.3g} are allowed; raise cache_gb or lower max_new_tokens"
            )
        return Sequence(
            request=request,
            limit=limit,
            future=asyncio.get_running_loop().create_future(),
            stop_tokens=self.text.stops(request.sampling),
            prompt_columns=columns,
        )

    @property
    def busy(self) -> bool:
        return bool(self.running or self.prefixes or self.waiting)

    def _clear(self) -> None:
        self.running, self.prefixes, self.waiting = [], [], deque()

    def _renew_cache(self, policy: CachePolicy) -> None:
        if policy == "keep":
            return
        self.memory.forget_all()
        if policy == "drain":  # which has let every group end
            return
        if policy == "abort":
            everything = self._all()
            self._remove(everything)
            for sequence in everything:
                self._finish(sequence, "abort")
            return
        redo, self.running = self.running, []
        for prefix in self.prefixes:
            prefix.restart()
        self._drop_unused()
        self._wait_again(redo)
