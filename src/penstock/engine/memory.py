"""What a generator remembers, under one budget in bytes: the pool of prefixes, the pool of running rows, kept conversations;
and where in it a request finds its beginning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from torch import Tensor

from penstock.core.blobs import Blob
from penstock.core.types import IntArray, Request, SampleKey, Version
from penstock.engine.cache import STEP, CachePool, Size, round_up

USUAL_GB = 4.0
"""Budget on a processor, in gigabytes, as of vLLM there."""
USUAL_SHARE = 0.5
"""Budget on an accelerator, as a share of its memory that is free when the generator is made: a learner may need the rest."""
LEAST = 32
"""Tokens that a request must begin with in common with what others have read for these to be copied."""
BRANCHES = 8
"""Beginnings of one conversation that are kept at most, where it is rendered anew or goes several ways."""


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
    since: Version
    """The oldest weights that have read any of it."""


@dataclass(frozen=True)
class Found:
    """The beginning of a request that need not be read again: of something kept, or of another prefix row."""

    length: int = 0
    since: Version = -1
    source: Kept | int | None = None
    own: bool = False
    """Whether it is the conversation's own."""


def common(one: IntArray, other: IntArray) -> int:
    """Tokens that two sequences begin with in common."""
    length = min(len(one), len(other))
    unlike = np.flatnonzero(one[:length] != other[:length])
    return int(unlike[0]) if len(unlike) else length


def begins(tokens: IntArray) -> bytes:
    """Under what a sequence is found by others: equal for those with at least :data:`LEAST` tokens in common."""
    return np.ascontiguousarray(tokens[:LEAST], np.int32).tobytes() if len(tokens) >= LEAST else b""


class Memory:
    """Two pools and what is kept of conversations, never above ``budget`` bytes together."""

    def __init__(self, prefixes: CachePool, own: CachePool, budget: int, most_rows: int) -> None:
        self.prefixes, self.own, self.budget, self.most_rows = prefixes, own, budget, most_rows
        self._kept: dict[SampleKey, tuple[Kept, ...]] = {}
        """The conversation that was kept or read last comes last."""
        self._alike: dict[bytes, dict[SampleKey, None]] = {}
        """Keys by :func:`begins`, in the order in which they were kept."""

    @property
    def bytes(self) -> int:
        """Bytes held now."""
        return self.prefixes.bytes + self.own.bytes + self._kept_bytes

    @property
    def _kept_bytes(self) -> int:
        return sum(one.bytes for kept in self._kept.values() for one in kept)

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
            self.forget(next(iter(self._kept)))

    # ---- conversations

    def keep(
        self, request: Request, tokens: IntArray, prefix: tuple[int, int], own: tuple[int, int], since: Version
    ) -> None:  # fmt: skip
        """Copy what a sequence that has ended read of a prefix and has in its own cache, (row, tokens) each: ``tokens`` in all,
        read by weights of version ``since`` and later.

        Other branches of the conversation stay. Older conversations make room; one that does not fit even so is not kept.
        """
        before = [one for one in self._kept.get(request.key, ()) if common(one.tokens, tokens) < len(one.tokens)]
        branches = before[1 - BRANCHES :]
        self.forget(request.key)
        size, room = len(tokens) * self.own.cell, self.budget - self.prefixes.bytes - self.own.bytes
        if size > room:
            return
        while branches and size + sum(one.bytes for one in branches) > room:
            branches.pop(0)
        self._evict(room - size - sum(one.bytes for one in branches))
        parts = zip((*self.prefixes.keys, *self.prefixes.values), (*self.own.keys, *self.own.values), strict=True)
        states = [torch.cat([read[prefix[0], :, : prefix[1]], made[own[0], :, : own[1]]], 1) for read, made in parts]
        self._hold(request.key, (*branches, Kept(tokens, request.blobs, states, size, since)))

    def _hold(self, key: SampleKey, kept: tuple[Kept, ...]) -> None:
        """What is kept of a conversation from now on; it comes last."""
        for one in self._kept.pop(key, ()):
            alike = self._alike.get(begins(one.tokens), {})
            alike.pop(key, None)
            if not alike:
                self._alike.pop(begins(one.tokens), None)
        if kept:
            self._kept[key] = kept
        for one in kept:
            self._alike.setdefault(begins(one.tokens), {})[key] = None

    def find(
        self, request: Request, tokens: IntArray, version: Version | None, rows: Mapping[int, IntArray]
    ) -> Found:  # fmt: skip
        """The longest beginning of ``tokens``, but for the last one, that is known. It is kept of the conversation itself, by
        whatever weights it was read; or it is at least :data:`LEAST` tokens that ``version`` alone has read (None: nothing),
        kept of others or in ``rows`` of the prefix pool, given with the tokens read. Of equals the one kept last."""
        best, most = Found(), tokens[:-1]
        for mine in reversed(self._kept.get(request.key, ())):
            if self._shows(mine, request) and (length := common(mine.tokens, most)) > best.length:
                best = Found(length, mine.since, mine, own=True)
        if version is None or not (begin := begins(most)):
            return best
        others = (one for key in reversed(self._alike.get(begin, {})) if key != request.key for one in self._kept[key])
        kept = [(one.tokens, one) for one in others if one.since == version and self._shows(one, request)]
        sources: list[tuple[IntArray, Kept | int]] = [*kept, *((read, row) for row, read in rows.items())]
        for read, source in sources:
            longer = best.length < min(len(read), len(most)) and read[best.length] == most[best.length]  # or it cannot be
            if longer and (length := common(read, most)) >= max(LEAST, best.length + 1):
                best = Found(length, version, source)
        return best

    @staticmethod
    def _shows(kept: Kept, request: Request) -> bool:
        return kept.blobs == request.blobs[: len(kept.blobs)]

    def restore(self, request: Request, found: Found, row: int) -> None:
        """Copy what was found to a prefix row. Of the request's own conversation, what goes on now is given up, and all of it
        where nothing may follow."""
        if isinstance(found.source, Kept):
            for pool, state in zip((*self.prefixes.keys, *self.prefixes.values), found.source.states, strict=True):
                pool[row, :, : found.length] = state[:, : found.length]
            read = [key for key, kept in self._kept.items() if any(one is found.source for one in kept)]
            for key in read:
                self._hold(key, tuple(one for one in self._kept[key] if not (found.own and one is found.source)))
        elif found.source is not None:
            self.prefixes.copy(found.source, row, found.length)
        if not request.keep:
            self.forget(request.key)

    def forget(self, key: SampleKey) -> bool:
        """Give a kept conversation up; whether there was one."""
        there = key in self._kept
        self._hold(key, ())
        return there

    def forget_all(self) -> None:
        self._kept.clear()
        self._alike.clear()


def _rounded(size: Size) -> Size:
    return size[0], round_up(size[1], STEP)
