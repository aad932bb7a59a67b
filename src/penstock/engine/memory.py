"""What a generator remembers, under one budget in bytes: the pool of prefixes, the pool of running rows, kept conversations."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from torch import Tensor

from penstock.core.blobs import Blob
from penstock.core.types import IntArray, Request, SampleKey
from penstock.engine.cache import STEP, CachePool, Size, round_up

USUAL_GB = 4.0
"""Budget on a processor, in gigabytes, as of vLLM there."""
USUAL_SHARE = 0.5
"""Budget on an accelerator, as a share of its memory that is free when the generator is made: a learner may need the rest."""


def budget_of(cache_gb: float, device: torch.device) -> int:
    """Bytes for ``cache_gb`` gigabytes (10⁹ bytes); 0 is the usual budget of a device."""
    if cache_gb == 0 and device.type == "cuda":
        return int(USUAL_SHARE * torch.cuda.mem_get_info(device)[0])
    return int((cache_gb or USUAL_GB) * 1e9)


@dataclass(frozen=True)
class Kept:
    """The cache of a conversation between two of its turns: ``[K, T, D]`` of keys of all layers, then of values."""

    tokens: IntArray
    blobs: tuple[Blob, ...]
    """The media that its tokens show: the same tokens of others are another conversation."""
    states: list[Tensor]
    bytes: int


class Memory:
    """Two pools and what is kept of conversations, never above ``budget`` bytes together."""

    def __init__(self, prefixes: CachePool, own: CachePool, budget: int, most_rows: int) -> None:
        self.prefixes, self.own, self.budget, self.most_rows = prefixes, own, budget, most_rows
        self._kept: dict[SampleKey, Kept] = {}
        """The conversation that was kept last comes last."""

    @property
    def bytes(self) -> int:
        """Bytes held now."""
        return self.prefixes.bytes + self.own.bytes + self._kept_bytes

    @property
    def _kept_bytes(self) -> int:
        return sum(kept.bytes for kept in self._kept.values())

    def needed(self, tokens: int) -> int:
        """Bytes at most of a sequence of ``tokens`` that has the memory for itself."""
        return (tokens + 2 * STEP + 2) * self.own.cell

    def rows(self, prefixes: Size, positions: int) -> int:
        """How many running rows of ``positions`` fit next to prefixes."""
        left = self.budget - self.prefixes.bytes_of(_rounded(prefixes))
        return min(self.most_rows, left // self.own.bytes_of(_rounded((1, positions))))

    def reserve(self, prefixes: Size, own: Size, limit: int) -> bool | None:
        """Let the pools hold these rows and positions, with room to grow where there is some: rows of ``limit`` own positions.

        Gives whether a pool moved; None, and changes nothing, where they do not fit the budget.
        """
        if self.prefixes.holds(prefixes) and self.own.holds(own):
            return False
        prefixes, own = _rounded(prefixes), _rounded(own)
        wishes = self.prefixes.grown(prefixes), self.own.grown((self.most_rows, round_up(max(limit, own[1]), STEP)))
        present = (self.prefixes, wishes[0], prefixes), (self.own, wishes[1], own)
        options = [((pool.size if pool.holds(need) else wish), need) for pool, wish, need in present]
        for sizes in product(*options):
            total = self.prefixes.bytes_of(sizes[0]) + self.own.bytes_of(sizes[1])
            last = sizes == (prefixes, own)
            if total + (0 if last else self._kept_bytes) <= self.budget:
                self._evict(self.budget - total)
                resized = zip((self.prefixes, self.own), sizes, strict=True)
                shrinking_first = sorted(resized, key=lambda one: one[0].bytes_of(one[1]) - one[0].bytes)
                return sum(pool.resize(size) for pool, size in shrinking_first) > 0
        return None

    def clear(self) -> None:
        """Give everything back; what was held is lost."""
        self.prefixes.clear()
        self.own.clear()
        self.forget_all()

    def _evict(self, room: int) -> None:
        while self._kept and self._kept_bytes > room:
            del self._kept[next(iter(self._kept))]

    # ---- conversations

    def keep(self, request: Request, tokens: IntArray, prefix: tuple[int, int], own: tuple[int, int]) -> None:
        """Copy what a sequence that has ended read of a prefix and has in its own cache, (row, tokens) each: ``tokens`` in all.

        Older conversations make room; one that does not fit even so is not kept.
        """
        self.forget(request.key)
        size, room = len(tokens) * self.own.cell, self.budget - self.prefixes.bytes - self.own.bytes
        if size > room:
            return
        self._evict(room - size)
        parts = zip((*self.prefixes.keys, *self.prefixes.values), (*self.own.keys, *self.own.values), strict=True)
        states = [torch.cat([read[prefix[0], :, : prefix[1]], made[own[0], :, : own[1]]], 1) for read, made in parts]
        self._kept[request.key] = Kept(tokens, request.blobs, states, size)

    def restore(self, request: Request, tokens: IntArray, row: int) -> int:
        """Copy what is kept of a conversation to a prefix row, so far as ``tokens`` begin with it; gives how many it
        holds then."""
        kept = self._kept.pop(request.key, None)
        if kept is None or kept.blobs != request.blobs[: len(kept.blobs)]:
            return 0
        length = min(len(kept.tokens), len(tokens) - 1)
        other = np.flatnonzero(kept.tokens[:length] != tokens[:length])
        length = int(other[0]) if len(other) else length
        for pool, state in zip((*self.prefixes.keys, *self.prefixes.values), kept.states, strict=True):
            pool[row, :, :length] = state[:, :length]
        return length

    def forget(self, key: SampleKey) -> bool:
        """Give a kept conversation up; whether there was one."""
        return self._kept.pop(key, None) is not None

    def forget_all(self) -> None:
        self._kept.clear()


def _rounded(size: Size) -> Size:
    return size[0], round_up(size[1], STEP)
