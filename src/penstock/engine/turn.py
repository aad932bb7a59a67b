"""One turn of the embedded generator: admit, prefill a chunk, fork prefixes into rows, decode one token for every row, let
the finished go. Everything here is synchronous; the verbs of the contract are in :mod:`penstock.engine.generator`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from penstock.core.types import FinishReason, IntArray, Sample, Version
from penstock.engine.cache import CachePool, PrefillPlan
from penstock.engine.decode import DecodeState, DecodeStep
from penstock.engine.driver import Driver
from penstock.engine.graphs import Graphs
from penstock.engine.memory import LEAST, Memory, begins, budget_of, common
from penstock.engine.sequences import Before, Prefix, Sequence, padded
from penstock.models.draws import TokenFilters, needs_filters, uniform_stream
from penstock.models.experts import check_routes, recorded, routers_of, routes_of
from penstock.models.language_model import LanguageModel

HEADROOM = 32
"""Own tokens that must fit beyond the longest row's before a row begins, so that it is not preempted at once."""


class Engine(Driver):
    """What runs, what waits and what the caches hold.

    ``max_running`` sequences are decoded at once; ``chunk`` prompt tokens are prefilled at most between two decode steps. The
    caches never take more than ``cache_gb`` gigabytes (0: :func:`penstock.engine.memory.budget_of`): a sequence that came last
    is preempted, keeps its tokens and log-probs, and goes on when there is room. With ``routes`` samples say which experts each
    token went through.
    """

    def __init__(
        self, model: LanguageModel, max_running: int, chunk: int, cache_gb: float, version: Version, routes: bool
    ) -> None:
        if routes:
            check_routes(model)
        self.routers = routers_of(model.network) if routes else []
        super().__init__(model, version)
        self.max_running, self.chunk = max_running, chunk
        device = model.device
        self.prefix_cache = CachePool(model.slots, model.dtype, device)
        self.own_cache = CachePool(model.slots, model.dtype, device)
        self.memory = Memory(self.prefix_cache, self.own_cache, budget_of(cache_gb, device), max_running)
        self.state = DecodeState(max_running, device)
        graphs = Graphs() if device.type == "cuda" else None
        self.decode = DecodeStep(model, self.prefix_cache, self.own_cache, self.state, graphs)
        self.running: list[Sequence] = []
        self.prefixes: list[Prefix] = []
        self.waiting: deque[Sequence] = deque()
        self.prefilled_tokens = self.reused_tokens = self.preemptions = 0

    def release(self) -> None:
        """Give the caches' memory back until the next request. No row may be in use."""
        self.memory.clear()
        self.decode.forget()

    @torch.no_grad()
    def step(self) -> None:
        """One turn of the engine."""
        started, known, flying = self.spans.clock(), self.generated_tokens, len(self.running) + len(self.waiting)
        self._drop_cancelled()
        self._admit()
        self._prefill()
        self._fork()
        if self.running:
            self._make_room()
            prefixes = [s.prefix.row for s in self.running if s.prefix is not None]
            seen = max(len(p.tokens) for p in self.prefixes)
            with recorded(self.routers) as chosen:
                made = self.decode(prefixes, seen, max(s.own for s in self.running))
            for routes, sequence in zip(routes_of(chosen), self.running, strict=True) if chosen else ():
                sequence.routes.append(routes[None].copy())
            self._collect(*made)
        self.tape.turn += 1
        ended = self.spans.clock()
        self.busy_seconds += ended - started
        self.spans.extend("generate", started, ended, tokens=self.generated_tokens - known, in_flight=flying)

    # ---- in

    def _admit(self) -> None:
        """Give waiting requests a prefix, in order; requests with equal tokens share one, unless older weights read it."""
        if not self.waiting:
            return
        shared = [p for p in self.prefixes if p.version in (-1, self.version) and not p.continued]
        known = {prefix.before.key: prefix for prefix in shared}
        promised = len(self.running) + sum(len(p.members) for p in self.prefixes)
        while self.waiting:
            first = self.waiting[0]
            first.before = first.before or self._before(first)
            prefix = known.get(first.before.key)
            if prefix is None:
                if promised and not promised < self._most_rows(0, first.before.tokens):
                    return
                prefix = known[first.before.key] = Prefix(first.before, [], row=len(self.prefixes))
                self.prefixes.append(prefix)
            prefix.members.append(self.waiting.popleft())
            promised += 1

    def _before(self, sequence: Sequence) -> Before:
        return Before(self._tokens_before(sequence))

    def _tokens_before(self, sequence: Sequence) -> IntArray:
        """The tokens that are read before a sequence draws: its prompt, and what it drew before an interruption."""
        return sequence.tokens_so_far()

    def _most_rows(self, own: int, *more: IntArray) -> int:
        """How many rows may run next to the prefixes and ``more``, with ``own`` tokens of their own and some to come."""
        lengths = [len(tokens) for tokens in (*(p.tokens for p in self.prefixes), *more)]
        return self.memory.rows((len(lengths), max(lengths)), max([own, *(s.own for s in self.running)]) + HEADROOM)

    def _reserve(self, limit: int) -> bool:
        """Let the caches hold what they have to, with room for ``limit`` own tokens if there is some. Gives whether they do."""
        prefixes = len(self.prefixes), max(len(p.tokens) for p in self.prefixes)
        moved = self.memory.reserve(prefixes, (len(self.running), max((s.own for s in self.running), default=0)), limit)
        if moved:
            self.decode.forget()
        return moved is not None

    def _make_room(self, limit: int = 0) -> None:
        """Preempt until what is left fits the budget: prefixes that nobody reads yet first, then who came last."""
        while not self._reserve(limit):
            idle = next((p for p in reversed(self.prefixes) if not p.users), None)
            last = max(range(len(self.running)), key=lambda row: self.running[row].number)
            back = idle.members if idle is not None else [self.running[last]]
            if idle is not None:
                idle.members = []
            else:
                self._release([last])
                self.preemptions += 1
            self._wait_again(back)
            self._drop_unused()

    def _wait_again(self, sequences: Iterable[Sequence]) -> None:
        """Let sequences wait in their old place; they keep their tokens, log-probs and versions."""
        for sequence in sequences:
            sequence.prefix = sequence.before = None
            self.waiting.append(sequence)
        self.waiting = deque(sorted(self.waiting, key=lambda sequence: sequence.number))

    def _prefill(self) -> None:
        """Run up to ``chunk`` prompt tokens of unfinished prefixes through the model, oldest first."""
        if all(p.done == len(p.tokens) for p in self.prefixes):
            return
        self._make_room()
        room, parts = self.chunk, list[tuple[Prefix, int]]()
        for prefix in self.prefixes:
            if not prefix.done and not self._begin(prefix, parts):
                continue
            count = self._next(prefix, room)
            if count > 0:
                parts.append((prefix, count))
                room -= count
        device, counts = self.model.device, [count for _, count in parts]
        tokens_N = np.concatenate([p.tokens[p.done : p.done + count] for p, count in parts])
        tokens = torch.from_numpy(tokens_N.astype(np.int64)).to(device)
        plan = PrefillPlan(self.prefix_cache, [p.row for p, _ in parts], [p.done for p, _ in parts], counts)
        with recorded(self.routers) as chosen:
            hidden = self._read(tokens, plan, parts)
        routes = np.split(routes_of(chosen), np.cumsum(counts)[:-1]) if chosen else []
        ends = torch.tensor(np.cumsum(counts) - 1, device=device)
        last = hidden.index_select(0, ends)
        logits = self.model.logits(last)
        advantages = None if self.model.q_heads is None else self.model.q_heads.advantage(last)
        for i, (prefix, count) in enumerate(parts):
            prefix.done += count
            prefix.version = self.version
            prefix.routes += routes[i : i + 1]
            if prefix.done == len(prefix.tokens):
                prefix.logits_V = logits[i]
                prefix.advantage_V = None if advantages is None else advantages[i]
        self.prefilled_tokens += len(tokens)

    def _next(self, prefix: Prefix, room: int) -> int:
        """How many of a prefix's tokens are read next."""
        return min(room, len(prefix.tokens) - prefix.done)

    def _read(self, tokens_N: Tensor, plan: PrefillPlan, parts: list[tuple[Prefix, int]]) -> Tensor:
        """Hidden states ``[N, H]`` of the next tokens of prefixes, so many of each."""
        return self.model.hidden(tokens_N[None], plan.position_N[None], plan)[0]

    def _begin(self, prefix: Prefix, reading: list[tuple[Prefix, int]]) -> bool:
        """Begin a prefix with the longest beginning that is known of it. Gives False where one of those that are ``reading``
        (so many tokens next) will know a longer one after this turn: it waits, so that tokens which several have in common are
        read once. Experts are noted where tokens are read: with routes nothing is taken over from others."""
        request, tokens, version = prefix.members[0].request, prefix.tokens, None if self.routers else self.version
        mine, known = begins(tokens), [p for p in self.prefixes if p.done >= LEAST and p.since == version and not request.blobs]
        found = self.memory.find(request, tokens, version, {p.row: p.tokens[: p.done] for p in known})
        if version is not None and mine and not request.blobs:
            alike = [p.tokens[: p.done + n] for p, n in reading if p.since == version and begins(p.tokens) == mine]
            if max((common(read, tokens[:-1]) for read in alike), default=0) >= found.length + LEAST:
                return False
        self.memory.restore(request, found, prefix.row)
        prefix.done, prefix.continued = found.length, found.own and found.length > 0
        prefix.since = found.since if found.length else self.version
        self.reused_tokens += prefix.done
        return True

    def _fork(self) -> None:
        """Give members of prefixes that have been read whole a decode row."""
        rows: list[int] = []
        for prefix in self.prefixes:
            if prefix.done < len(prefix.tokens) or not prefix.members:
                continue
            own = max(map(self._own_tokens, prefix.members))
            free = max(self._most_rows(own) - len(self.running), 0 if self.running else 1)
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
            if prefix.routes:
                sequence.read(padded(prefix.routes, len(prefix.tokens) - sum(map(len, prefix.routes)), len(prefix.tokens)))
        self.generated_tokens += len(new)
        self._retire(rows)

    def _set_up(self, rows: list[int], new: list[Sequence], sources: list[Prefix], longest: int) -> Tensor:
        """The state of rows that begin, with room for ``longest`` own tokens each; gives the rows as an index."""
        if self.state.ensure(max(s.limit for s in new)):
            self.decode.forget()
        self._make_room(longest)
        self.decode.regroup()
        streams = [uniform_stream(s.request.sampling.seed, s.request.key, s.limit) for s in new]
        self.state.start(rows, [s.request.sampling for s in new], streams, [len(s.tokens) for s in new])
        index = torch.tensor(rows, device=self.model.device)
        self.state.prefix_length[index] = torch.tensor([len(p.tokens) for p in sources], device=self.model.device)
        self.state.shift[index] = torch.tensor([p.before.shift for p in sources], device=self.model.device)
        return index

    def _collect(self, tokens: list[int], logps: list[float]) -> None:
        """Note the step's tokens and let finished sequences go."""
        for sequence, token, logp in zip(self.running, tokens, logps, strict=True):
            sequence.append(token, logp, self.version)
        self.generated_tokens += len(tokens)
        self._retire(list(range(len(tokens))))

    # ---- out

    def _retire(self, rows: list[int]) -> None:
        """Let rows go whose samples are over, the last one first."""
        finished = [(row, reason) for row in reversed(rows) if (reason := self.running[row].finish_reason(self.text))]
        if not finished:
            return
        ended = [(self.running[row], reason) for row, reason in finished]
        for row, _ in finished:
            self._keep(row)
        self._release([row for row, _ in finished])
        for sequence, reason in ended:
            self._finish(sequence, reason)
        self._drop_unused()

    def _keep(self, row: int) -> None:
        """Keep the cache of a conversation that may go on; its last token was not read yet."""
        sequence = self.running[row]
        if sequence.request.keep and sequence.prefix is not None:
            prefix = sequence.prefix.row, len(sequence.prefix.tokens)
            own = row, sequence.own - 1
            self.memory.keep(sequence.request, sequence.tokens_so_far()[:-1], prefix, own, sequence.prefix.since)

    def _finish(self, sequence: Sequence, reason: FinishReason) -> Sample:
        sample = sequence.sample(reason, self.text)
        if not sequence.future.done():
            sequence.future.set_result(sample)
        return sample

    def _release(self, rows: list[int]) -> None:
        """Free decode rows; the last ones move into them, so that rows stay dense."""
        for row in rows:
            prefix = self.running[row].prefix
            if prefix is not None:
                prefix.users -= 1
        for source, target in moves(rows, len(self.running)):
            self.own_cache.copy(source, target, self.running[source].own)
            self.state.copy(source, target)
            self.running[target] = self.running[source]
        del self.running[len(self.running) - len(rows) :]
        self.decode.regroup()

    def _drop_unused(self) -> None:
        """Free prefixes that nobody reads or waits for; those in the last rows move into theirs, so that rows stay dense."""
        gone = [p.row for p in self.prefixes if not p.users and not p.members]
        if not gone:
            return
        at_row = {p.row: p for p in self.prefixes}
        for source, target in moves(gone, len(self.prefixes)):
            self.prefix_cache.copy(source, target, at_row[source].done)
            at_row[source].row = target
        self.prefixes = [p for p in self.prefixes if p.users or p.members]
        self.decode.regroup()

    def _remove(self, sequences: Iterable[Sequence]) -> None:
        """Take sequences out, wherever they are."""
        gone = set(map(id, sequences))
        self.waiting = deque(s for s in self.waiting if id(s) not in gone)
        for prefix in self.prefixes:
            prefix.members = [s for s in prefix.members if id(s) not in gone]
        self._release([row for row, sequence in enumerate(self.running) if id(sequence) in gone])
        self._drop_unused()

    def _all(self) -> list[Sequence]:
        return [*self.running, *(s for p in self.prefixes for s in p.members), *self.waiting]

    def _drop_cancelled(self) -> None:
        cancelled = [s for s in self._all() if s.future.cancelled()]
        if cancelled:
            self._remove(cancelled)


def moves(free: list[int], count: int) -> list[tuple[int, int]]:
    """From which row to which the last of ``count`` rows move so that ``free`` ones leave no gaps: each row at most once."""
    left = count - len(free)
    gone = set(free)
    sources = [row for row in range(left, count) if row not in gone]
    return list(zip(sources, sorted(row for row in gone if row < left), strict=True))
