"""Which row comes when: a pure function of seed, epoch and ordinal, so that a resume reads what a full run would."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock.config.run import DataSpec
from penstock.core.contracts import Source
from penstock.core.errors import DataError
from penstock.core.types import Prompt, PromptKey
from penstock.data.render import Answered, Renderer
from penstock.data.rows import DataRow
from penstock.data.sources import open_source

Item = TypeVar("Item")


@functools.lru_cache(maxsize=8)
def order(seed: int, epoch: int, size: int) -> NDArray[np.int64]:
    """The order of an epoch: a read-only permutation of ``0 … size-1``, keyed by seed and epoch."""
    key = np.array([seed % 2**64, epoch], np.uint64)
    # Sorting raw words rather than calling permutation(): numpy keeps bit streams stable between releases, methods not.
    found = np.argsort(np.random.Philox(key=key).random_raw(size), kind="stable")
    found.setflags(write=False)
    return found


SHUFFLED = 1 << 20
"""Rows up to which an epoch's order is held; above, the place of each draw is computed, with no memory and in constant time."""
LOOKED_THROUGH = 100_000
"""Rows up to which all are looked at before the first draw where some are to be left out; above, each is in its turn."""
TRIES = 100
"""Rows that may be too long one after another."""


def mixed(*words: int) -> int:
    """64 bits that depend on every bit of some whole numbers (splitmix64, Steele et al. 2014)."""
    state = 0
    for word in words:
        state = (state ^ (word & _ALL)) + 0x9E3779B97F4A7C15 & _ALL
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _ALL
        state = (state ^ state >> 27) * 0x94D049BB133111EB & _ALL
        state ^= state >> 31
    return state


_ALL = (1 << 64) - 1


def permuted(place: int, seed: int, epoch: int, size: int) -> int:
    """Where ``place`` goes in a permutation of ``0 … size-1``, keyed by seed and epoch.

    SOURCE: Black and Rogaway 2002, "Ciphers with arbitrary finite domains": a Feistel network over the next power of four,
    walked until it is within the size.
    """
    half = ((size - 1).bit_length() + 1) // 2
    low = (1 << half) - 1
    while True:
        left, right = place >> half, place & low
        for turn in range(6):
            left, right = right, left ^ (mixed(seed, epoch, turn, right) & low)
        place = left << half | right
        if place < size:
            return place


class Sampler(Generic[Item]):
    """Draws the ``ordinal``-th thing of an endless sequence of epochs over a source; holds no position.

    ``make`` turns a key, a row and the row's index into the thing. The key's ordinal counts within its epoch.
    """

    def __init__(
        self, source: Source, seed: int, make: Callable[[PromptKey, DataRow, int], Item], shuffle: bool = True
    ) -> None:
        if len(source) == 0:
            raise DataError(f"{source.name}: no rows to draw from")
        self.source = source
        self.rows: Sequence[int] = range(len(source))
        """Indices of the source's rows that take part."""
        self.seed = seed
        self.shuffle = shuffle
        self._make = make
        self._keep: Callable[[Item, int], bool] | None = None
        self._chosen: dict[int, int] = {}
        """The rows of draws that were looked at, the newest ones."""

    def __len__(self) -> int:
        """Draws in one epoch."""
        return len(self.rows)

    def mapped(self, change: Callable[[Item], Item]) -> Sampler[Item]:
        """A sampler of the same draws, each after ``change``."""
        found, make = copy.copy(self), self._make
        found._make = lambda key, row, index: change(make(key, row, index))
        return found

    def where(self, keep: Callable[[Item, int], bool]) -> Sampler[Item]:
        """A sampler over the rows that ``keep`` (of the item and its row) says yes to; all are looked at, in order.

        Of more than :data:`LOOKED_THROUGH` rows each is looked at in its turn, and another one, which depends on the draw
        alone, takes the place of one that is left out.

        Raises:
            DataError: none is left.
        """
        kept, name = copy.copy(self), self.source.name
        if len(self) > LOOKED_THROUGH:
            kept._keep, kept._chosen = keep, {}
            return kept
        kept.rows = [row for row in self.rows if keep(self._make(PromptKey(name, 0, row), self.source[row], row), row)]
        if not kept.rows:
            raise DataError(f"{name}: all of its {len(self)} rows are too long; raise too_long.tokens or use a longer context")
        return kept

    def index(self, ordinal: int) -> int:
        """Which of the source's rows the ``ordinal``-th draw is."""
        if self._keep is None:
            return self._sampled(ordinal)
        if ordinal not in self._chosen:
            if len(self._chosen) >= 1 << 12:
                self._chosen.pop(next(iter(self._chosen)))
            self._chosen[ordinal] = self._kept(ordinal, self._keep)
        return self._chosen[ordinal]

    def _sampled(self, ordinal: int) -> int:
        epoch, place = divmod(ordinal, len(self))
        if self.shuffle and len(self) > SHUFFLED:
            return self.rows[permuted(place, self.seed, epoch, len(self))]
        return self.rows[int(order(self.seed, epoch, len(self))[place]) if self.shuffle else place]

    def _kept(self, ordinal: int, keep: Callable[[Item, int], bool]) -> int:
        """The row of a draw, or the first of others in its place that stays."""
        row, name = self._sampled(ordinal), self.source.name
        for attempt in range(TRIES):
            if keep(self._make(PromptKey(name, 0, row), self.source[row], row), row):
                return row
            row = self.rows[mixed(self.seed, ordinal, attempt) % len(self)]
        raise DataError(f"{name}: {TRIES} rows one after another are too long; raise too_long.tokens or use a longer context")

    def __call__(self, ordinal: int) -> Item:
        """The ``ordinal``-th draw, counted over all epochs from 0."""
        if ordinal < 0:
            raise DataError(f"{self.source.name}: draw {ordinal} is negative; the first draw is 0")
        index = self.index(ordinal)
        return self._make(PromptKey(self.source.name, *divmod(ordinal, len(self))), self.source[index], index)


def prompts(spec: DataSpec, base: Path, seed: int) -> Sampler[Prompt]:
    """Prompts of a data spec; fulfils the PromptSource protocol."""
    return Sampler(open_source(spec, base), seed, Renderer(spec).prompt, spec.shuffle)


def examples(spec: DataSpec, base: Path, seed: int) -> Sampler[Answered]:
    """Prompts with their completions, for supervised fine-tuning."""
    return Sampler(open_source(spec, base), seed, Renderer(spec).example, spec.shuffle)


def pairs(spec: DataSpec, base: Path, seed: int) -> Sampler[Answered]:
    """Preference pairs."""
    return Sampler(open_source(spec, base), seed, Renderer(spec).pair, spec.shuffle)


def row_name(source: Sampler[Any], data: DataSpec, ordinal: int) -> str:
    """Which row a draw is, in the words of errors: rows count from 0, as templates count them."""
    return f"{data.source} row {source.index(ordinal) + data.skip}"
