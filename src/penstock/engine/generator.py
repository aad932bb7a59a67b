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

from penstock.core.errors import GenerationError
from penstock.core.spans import NO_SPANS, Spans
from penstock.core.tape import Tape
from penstock.core.types import (
    CachePolicy,
    FinishReason,
    FloatArray,
    GeneratorStats,
    IntArray,
    OnToken,
    Request,
    Sample,
    SampleKey,
    Version,
    WeightUpdate,
)
from penstock.engine.cache import CachePool, PrefillPlan
from penstock.engine.decode import DecodeState, DecodeStep
from penstock.engine.sequences import Prefix, Sequence
from penstock.models.attention import single_row_plan
from penstock.models.draws import TokenFilters, needs_filters, uniform_stream
from penstock.models.language_model import LanguageModel
from penstock.models.sequence_state import require_room
from penstock.models.updates import require_newer, switch, verified


class EmbeddedGenerator:
    """Implements the ``Generator`` contract in this process.

    ``max_running`` sequences are decoded at once; ``chunk`` prompt tokens are prefilled at most between two decode steps;
    ``queue`` bounds the requests that may wait (more are refused). The model's parameters are read where they are: when a
    learner trains the same model object, the generator aliases them.
    """

    def __init__(
        self, model: LanguageModel, *, max_running: int = 128, chunk: int = 2048, queue: int = 1 << 16, version: Version = 0
    ) -> None:
        self.model = model
        self.text = model.text
        self.max_running, self.chunk, self.queue = max_running, chunk, queue
        self.version: Version = version
        self.learner_epoch = 0
        self.prefix_cache = CachePool(model.slots, model.dtype, model.device)
        self.own_cache = CachePool(model.slots, model.dtype, model.device)
        self.state = DecodeState(max_running, model.device)
        graphs = model.device.type == "cuda"
        self.decode = DecodeStep(model, self.prefix_cache, self.own_cache, self.state, graphs)
        self.running: list[Sequence] = []
        self.prefixes: list[Prefix] = []
        self.waiting: deque[Sequence] = deque()
        self.generated_tokens = 0
        self.prefilled_tokens = 0
        self.busy_seconds = 0.0
        self.spans: Spans = NO_SPANS
        self.tape = Tape()
        self._open = asyncio.Event()
        self._open.set()
        self._driver: asyncio.Task[None] | None = None

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

    async def load(self, update: WeightUpdate) -> Version:
        """Take new weights between two decode steps; what becomes of the cache is the update's ``kv``.

        Raises:
            WeightError: the update was refused; the old weights and version are still in place.
        """
        require_newer(update, (self.learner_epoch, self.version))
        stalled = self.spans.clock()
        if update.owned:  # looked at in a thread, while decoding goes on
            tensors = await asyncio.to_thread(verified, dict(self.model.policy_weights()), update)
            stalled = self.spans.clock()
            require_newer(update, (self.learner_epoch, self.version))  # another may have come meanwhile
        else:
            tensors = verified(dict(self.model.policy_weights()), update)
        self.tape.load(update.version, update.learner_epoch)
        switch(self.model, tensors, update.owned)
        self.learner_epoch, self.version = update.learner_epoch, update.version
        self._renew_cache(update.kv)
        self.spans.add("update", stalled, self.spans.clock(), version=update.version)
        return self.version

    async def abort(self, keys: Collection[SampleKey]) -> list[Sample]:
        """Stop the named samples wherever they are; gives what was generated so far, fit to resume from."""
        wanted = set(keys)
        found = [s for s in self._all() if s.request.key in wanted]
        self._remove(found)
        return [self._finish(sequence, "abort") for sequence in found]

    def pause(self) -> None:
        """Draw no more tokens until ``resume``; weights may change meanwhile, and requests may come, be aborted or leave."""
        self._open.clear()

    def resume(self) -> None:
        self._open.set()

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
        )

    # ---- requests in and out

    def sequence(self, request: Request) -> Sequence:
        """A request that has been looked at, not under way yet. Raises GenerationError for one that cannot be answered."""
        require_room(request, self.model.context)
        if request.sampling.beta and self.model.q_heads is None:
            raise GenerationError(f"{request.key}: beta={request.sampling.beta} needs Q heads, which ILQL trains; use beta=0")
        if len(self.waiting) >= self.queue:
            raise GenerationError(f"{request.key}: {self.queue} requests are waiting already")
        return Sequence(
            request=request,
            limit=min(request.sampling.max_new_tokens, self.model.context - len(request.tokens_T)),
            future=asyncio.get_running_loop().create_future(),
            stop_tokens=self.text.ends.union(request.sampling.stop_tokens),
        )

    def _finish(self, sequence: Sequence, reason: FinishReason) -> Sample:
        sample = sequence.sample(reason, self.text)
        if not sequence.future.done():
            sequence.future.set_result(sample)
        return sample

    def _all(self) -> list[Sequence]:
        return [*self.running, *(s for p in self.prefixes for s in p.members), *self.waiting]

    def _remove(self, sequences: list[Sequence]) -> None:
        gone = set(map(id, sequences))
        self.waiting = deque(s for s in self.waiting if id(s) not in gone)
        for prefix in self.prefixes:
            prefix.members = [s for s in prefix.members if id(s) not in gone]
        for row in reversed(range(len(self.running))):
            if id(self.running[row]) in gone:
                self._release(row)
        self._drop_unused()

    def _renew_cache(self, policy: CachePolicy) -> None:
        if policy in ("keep", "drain"):  # a drain has let every group end
            return
        if policy == "abort":
            everything = self._all()
            self._remove(everything)
            for sequence in everything:
                self._finish(sequence, "abort")
            return
        redo = [*self.running]
        self.running = []
        for sequence in redo:
            sequence.prefix = None
        for prefix in self.prefixes:
            prefix.restart()
        self._drop_unused()
        self.waiting.extendleft(reversed(redo))

    # ---- the engine

    def _drive(self) -> None:
        if self._driver is None or self._driver.done():
            self._driver = asyncio.get_running_loop().create_task(self._run(), name="generator")

    async def _run(self) -> None:
        """Step while there is work; a failure reaches everyone who waits. Other tasks run between any two steps."""
        try:
            while self.running or self.prefixes or self.waiting:
                await self._open.wait()
                self.step()
                await asyncio.sleep(0)
        except Exception as error:
            everything = self._all()
            self.running, self.prefixes, self.waiting = [], [], deque()
            for sequence in everything:
                if not sequence.future.done():
                    failure = GenerationError(f"{sequence.request.key}: the engine failed: {error!r}")
                    failure.__cause__ = error
                    sequence.future.set_exception(failure)

    @torch.no_grad()
    def step(self) -> None:
        """One turn of the engine."""
        started, known, flying = self.spans.clock(), self.generated_tokens, len(self.running) + len(self.waiting)
        self._drop_cancelled()
        self._admit()
        self._prefill()
        self._fork()
        if self.running:
            prefixes = [s.prefix.row for s in self.running if s.prefix is not None]
            seen = max(len(p.tokens) for p in self.prefixes)
            self._collect(*self.decode(prefixes, seen, max(s.own for s in self.running)))
        self.tape.turn += 1
        ended = self.spans.clock()
        self.busy_seconds += ended - started
        self.spans.extend("generate", started, ended, tokens=self.generated_tokens - known, in_flight=flying)

    def _drop_cancelled(self) -> None:
        cancelled = [s for s in self._all() if s.future.cancelled()]
        if cancelled:
            self._remove(cancelled)

    def _admit(self) -> None:
        """Give waiting requests a prefix, in order; requests with equal tokens share one, unless older weights read it."""
        known = {prefix.tokens: prefix for prefix in self.prefixes if prefix.version in (-1, self.version)}
        promised = len(self.running) + sum(len(p.members) for p in self.prefixes)
        while self.waiting:
            tokens = self._prefix_of(self.waiting[0])
            prefix = known.get(tokens)
            if prefix is None:
                if promised >= self.max_running:
                    return
                prefix = known[tokens] = Prefix(tokens, [], row=len(self.prefixes))
                self.prefixes.append(prefix)
            prefix.members.append(self.waiting.popleft())
            promised += 1

    def _prefix_of(self, sequence: Sequence) -> tuple[int, ...]:
        """The tokens that are read before a sequence draws: its prompt, and what it drew before an interruption."""
        return (*map(int, sequence.request.tokens_T), *sequence.tokens)

    def _prefill(self) -> None:
        """Run up to ``chunk`` prompt tokens of unfinished prefixes through the model, oldest first."""
        room, parts = self.chunk, []
        for prefix in self.prefixes:
            count = min(room, len(prefix.tokens) - prefix.done)
            if count > 0:
                parts.append((prefix, count))
                room -= count
        if not parts:
            return
        if self.prefix_cache.ensure(len(self.prefixes), max(len(p.tokens) for p, _ in parts)):
            self.decode.forget()
        device = self.model.device
        tokens = torch.tensor([t for p, count in parts for t in p.tokens[p.done : p.done + count]], device=device)
        counts = [count for _, count in parts]
        plan = PrefillPlan(self.prefix_cache, [p.row for p, _ in parts], [p.done for p, _ in parts], counts)
        hidden = self.model.hidden(tokens[None], plan.position_N[None], plan)[0]
        ends = torch.tensor(np.cumsum(counts) - 1, device=device)
        last = hidden.index_select(0, ends)
        logits = self.model.logits(last)
        advantages = None if self.model.q_heads is None else self.model.q_heads.advantage(last)
        for i, (prefix, count) in enumerate(parts):
            prefix.done += count
            prefix.version = self.version
            if prefix.done == len(prefix.tokens):
                prefix.logits_V = logits[i]
                prefix.advantage_V = None if advantages is None else advantages[i]
        self.prefilled_tokens += len(tokens)

    def _fork(self) -> None:
        """Give members of prefixes that have been read whole a decode row."""
        rows: list[int] = []
        for prefix in self.prefixes:
            free = self.max_running - len(self.running)
            if prefix.done < len(prefix.tokens) or not free or not prefix.members:
                continue
            members, prefix.members = prefix.members[:free], prefix.members[free:]
            for sequence in members:
                sequence.prefix, sequence.own = prefix, self._own_tokens(sequence)
            prefix.users += len(members)
            rows += range(len(self.running), len(self.running) + len(members))
            self.running += members
        if rows:
            self._start_rows(rows, [s.prefix for s in self.running[rows[0] :] if s.prefix is not None])

    def _own_tokens(self, sequence: Sequence) -> int:
        """How many tokens a sequence holds in its row's own cache when it starts: all it has are its prefix's."""
        return 0

    def _start_rows(self, rows: list[int], sources: list[Prefix]) -> None:
        """Draw the first token of new rows from their prefixes' logits."""
        new = [self.running[row] for row in rows]
        index = self._set_up(rows, new, sources, max(s.limit - len(s.tokens) for s in new))
        samplings = [s.request.sampling for s in new]
        cuts = TokenFilters(samplings, self.model.device) if any(map(needs_filters, samplings)) else None
        logits = torch.stack([p.logits_V for p in sources if p.logits_V is not None])
        if any(s.beta for s in samplings):
            advantage = torch.stack([p.advantage_V for p in sources if p.advantage_V is not None])
            logits = logits + self.state.beta[index, None] * advantage
        self.decode.choose(index, logits, cuts)
        tokens, logps = self.state.token[index].tolist(), self.state.logp[index].tolist()
        for sequence, token, logp, prefix in zip(new, tokens, logps, sources, strict=True):
            sequence.append(token, logp, prefix.version)
        self.generated_tokens += len(new)
        self._retire(rows)

    def _set_up(self, rows: list[int], new: list[Sequence], sources: list[Prefix], longest: int) -> Tensor:
        """The state of rows that begin, with room for ``longest`` own tokens each; gives the rows as an index."""
        if self.state.ensure(max(s.limit for s in new)) | self.own_cache.ensure(self.max_running, longest):
            self.decode.forget()
        self.decode.regroup()
        streams = [uniform_stream(s.request.sampling.seed, s.request.key, s.limit) for s in new]
        self.state.start(rows, [s.request.sampling for s in new], streams, [len(s.tokens) for s in new])
        index = torch.tensor(rows, device=self.model.device)
        self.state.prefix_length[index] = torch.tensor([len(p.tokens) for p in sources], device=self.model.device)
        return index

    def _collect(self, tokens: list[int], logps: list[float]) -> None:
        """Note the step's tokens and let finished sequences go."""
        for sequence, token, logp in zip(self.running, tokens, logps, strict=True):
            sequence.append(token, logp, self.version)
        self.generated_tokens += len(tokens)
        self._retire(list(range(len(tokens))))

    def _retire(self, rows: list[int]) -> None:
        finished = [(row, reason) for row in rows if (reason := self.running[row].finish_reason(self.text))]
        for row, reason in reversed(finished):
            sequence = self.running[row]
            self._release(row)
            self._finish(sequence, reason)
        if finished:
            self._drop_unused()

    def _release(self, row: int) -> None:
        """Free a decode row; the last row moves into it, so that rows stay dense."""
        gone, last = self.running[row], len(self.running) - 1
        if row != last:
            moved = self.running[last]
            self.own_cache.copy(last, row, moved.own)
            self.state.copy(last, row)
            self.running[row] = moved
        self.running.pop()
        if gone.prefix is not None:
            gone.prefix.users -= 1
        self.decode.regroup()

    def _drop_unused(self) -> None:
        """Free prefixes that nobody reads or waits for; later ones move down, so that their rows stay dense."""
        kept = [p for p in self.prefixes if p.users or p.members]
        for row, prefix in enumerate(kept):
            if prefix.row != row:
                self.prefix_cache.copy(prefix.row, row, prefix.done)
                prefix.row = row
        self.prefixes = kept
        self.decode.regroup()
