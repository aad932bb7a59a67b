"""Decode steps captured on CUDA: a bounded number of graphs over one pool of memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

LIMIT = 64
"""Graphs kept at once. A batch of 128 ragged samples passes through about 25 sizes."""
LEAST_WINDOW = 64
"""Cache positions that a graph reads at least."""

Key = tuple[int, ...]
Cells = tuple[Tensor, Tensor]


class Replayable(Protocol):
    def replay(self) -> None: ...


def power_of_two(count: int, limit: int) -> int:
    """The size that a dimension of ``count`` is padded to: the next power of two, at most ``limit``."""
    return min(limit, 1 << (count - 1).bit_length())


class Graphs:
    """Captured steps by their sizes; beyond ``limit`` the one that was not replayed for longest goes.

    They share a pool of memory: one is replayed at a time, and what it gives lies in tensors outside of the pool.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self.limit = limit
        self.captures = 0
        """Graphs captured so far."""
        self.pools = 0
        """Memory pools opened so far: one, and another after every :meth:`clear`."""
        self._pool: Any = None
        self._held: dict[Key, tuple[Replayable, Cells]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def clear(self) -> None:
        """Drop all graphs and their memory: something that they point at has moved."""
        self._held.clear()
        self._pool = None

    def replay(self, key: Key, cells: Cells, step: Callable[[Cells], None], moving: tuple[Tensor, ...]) -> None:
        """Run the step of these sizes over ``cells``; the first time it is captured, which moves ``moving`` not at all."""
        held = self._held.pop(key, None)
        if held is None:
            own = cells[0].clone(), cells[1].clone()
            if self._pool is None:
                self._pool, self.pools = self._open(), self.pools + 1
            held, self.captures = (self._capture(lambda: step(own), moving, self._pool), own), self.captures + 1
            if len(self._held) >= self.limit:
                del self._held[next(iter(self._held))]
        self._held[key] = held
        graph, own = held
        for place, now in zip(own, cells, strict=True):
            place.copy_(now)
        graph.replay()

    def _open(self) -> Any:
        return torch.cuda.graph_pool_handle()

    def _capture(self, step: Callable[[], None], moving: tuple[Tensor, ...], pool: Any) -> Replayable:
        """Record a step after a warm-up on a side stream; ``moving`` is put back to where it was."""
        kept = [tensor.clone() for tensor in moving]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            step()
        for tensor, old in zip(moving, kept, strict=True):
            tensor.copy_(old)
        return graph
