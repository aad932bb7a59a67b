"""One decode step of the dense rows: forward, draw, advance. On CUDA the step is captured as a graph per bucket."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from penstock.core.types import Sampling
from penstock.engine.cache import ROUND, CachePool, DecodePlan
from penstock.engine.draws import Cuts, draw, needs_cuts
from penstock.models.language_model import LanguageModel


def bucket(count: int, limit: int) -> int:
    """The batch size a captured step of ``count`` rows is padded to: powers of two, then multiples of 16."""
    size = 1
    while size < count and size < 16:
        size *= 2
    return min(limit, size if count <= size else -(-count // 16) * 16)


class DecodeState:
    """Per-row tensors that a decode step reads and advances; they never move, so a captured graph may point at them."""

    def __init__(self, rows: int, device: torch.device) -> None:
        self.rows, self.device = rows, device
        self.token = torch.zeros(rows, dtype=torch.int64, device=device)
        self.position = torch.zeros(rows, dtype=torch.int64, device=device)
        self.drawn = torch.zeros(rows, dtype=torch.int64, device=device)
        self.temperature = torch.ones(rows, device=device)
        self.uniform = torch.zeros(rows, 1, dtype=torch.float64, device=device)
        self.logp = torch.zeros(rows, device=device)
        self.samplings: list[Sampling] = [Sampling()] * rows

    def ensure(self, draws: int) -> bool:
        """Make room for streams of ``draws`` numbers; gives True if the tensor moved."""
        if draws <= self.uniform.shape[1]:
            return False
        grown = torch.zeros(self.rows, -(-draws // ROUND) * ROUND, dtype=torch.float64, device=self.device)
        grown[:, : self.uniform.shape[1]] = self.uniform
        self.uniform = grown
        return True

    def start(self, rows: list[int], samplings: list[Sampling], streams: list[NDArray[np.float64]], drawn: list[int]) -> None:
        """Set rows up for sequences that are about to draw."""
        self.temperature[rows] = torch.tensor([s.temperature for s in samplings], device=self.device)
        self.drawn[rows] = torch.tensor(drawn, device=self.device)
        for row, sampling, stream in zip(rows, samplings, streams, strict=True):
            self.samplings[row] = sampling
            self.uniform[row, : len(stream)] = torch.from_numpy(stream).to(self.device)

    def copy(self, source: int, target: int) -> None:
        """Move a row's state: the last row takes the place of a finished one."""
        for tensor in (self.token, self.position, self.drawn, self.temperature, self.uniform, self.logp):
            tensor[target] = tensor[source]
        self.samplings[target] = self.samplings[source]


class DecodeStep:
    """Advances the first ``count`` rows by one token. With ``graphs`` the step is captured and replayed on CUDA."""

    def __init__(self, model: LanguageModel, pool: CachePool, state: DecodeState, rows: int, graphs: bool) -> None:
        self.model, self.pool, self.state, self.rows = model, pool, state, rows
        self.graphs = graphs
        self._captured: dict[tuple[int, int], torch.cuda.CUDAGraph] = {}

    def forget(self) -> None:
        """Drop captured graphs: something they point at has moved."""
        self._captured.clear()

    def __call__(self, count: int, longest: int) -> tuple[list[int], list[float]]:
        """Run a step over rows that see at most ``longest`` positions; gives their tokens and log-probs."""
        window = min(-(-longest // ROUND) * ROUND, self.pool.positions)
        samplings = self.state.samplings[:count]
        cuts = Cuts(samplings, self.pool.device) if any(needs_cuts(s) for s in samplings) else None
        if self.graphs and cuts is None:
            self._replay(bucket(count, self.rows), window)
        else:
            self._advance(count, window, cuts)
        return self.state.token[:count].tolist(), self.state.logp[:count].tolist()

    def _advance(self, count: int, window: int, cuts: Cuts | None) -> None:
        state = self.state
        position = state.position[:count]
        plan = DecodePlan(self.pool, position, window)
        context = self.model.context - 1  # idle rows of a padded step may have run past it
        hidden = self.model.hidden(state.token[:count, None], position[:, None].clamp(max=context), plan)
        self.choose(slice(0, count), self.model.logits(hidden[:, 0]), cuts)
        position += 1

    def choose(self, rows: slice | Tensor, logits_BV: Tensor, cuts: Cuts | None) -> None:
        """Draw the next token of rows from their logits and note it in the state."""
        state = self.state
        at = state.drawn[rows].clamp(max=state.uniform.shape[1] - 1)
        uniform = state.uniform[rows].gather(1, at[:, None]).squeeze(1)
        token, logp = draw(logits_BV, uniform, state.temperature[rows], cuts)
        state.token[rows] = token
        state.logp[rows] = logp
        state.drawn[rows] += 1

    def _replay(self, count: int, window: int) -> None:
        key = (count, window)
        if key not in self._captured:
            self._capture(count, window)
        self._captured[key].replay()

    def _capture(self, count: int, window: int) -> None:
        """Record the step after a warm-up on a side stream; the state is put back to where it was."""
        state = self.state
        kept = [t.clone() for t in (state.token, state.position, state.drawn, state.logp)]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                self._advance(count, window, None)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._advance(count, window, None)
        for tensor, old in zip((state.token, state.position, state.drawn, state.logp), kept, strict=True):
            tensor.copy_(old)
        self._captured[(count, window)] = graph
