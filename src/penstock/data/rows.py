"""Rows under a name, and the slice of them that a spec asks for."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.config.run import DataSpec
from penstock.core.errors import DataError

DataRow = Mapping[str, Any]


class Chain:
    """The rows of several sources, one after another."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self._parts = parts
        self._ends = list(itertools.accumulate(len(part) for part in parts))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: int) -> DataRow:
        part = bisect.bisect_right(self._ends, index)
        row: DataRow = self._parts[part][index - (self._ends[part - 1] if part else 0)]
        return row


class Rows:
    """Rows of data under a name, which stay where they are; fulfils the Source protocol.

    Args:
        rows: what gives a row by its index.
        chosen: indices of those that count; None: all.
    """

    def __init__(self, name: str, rows: Any, chosen: range | None = None) -> None:
        self.name, self._rows, self._chosen = name, rows, range(len(rows)) if chosen is None else chosen

    @classmethod
    def of(cls, spec: DataSpec, usual: str, rows: Any) -> Rows:
        """What ``skip`` and ``size`` leave, under the spec's name or the ``usual`` one. Raises DataError: nothing is left."""
        return cls(spec.name or usual, rows, span(spec, len(rows)))

    def __len__(self) -> int:
        return len(self._chosen)

    def __getitem__(self, index: int) -> DataRow:
        row: DataRow = self._rows[self._chosen[index]]
        return row


def span(spec: DataSpec, available: int) -> range:
    """Indices of the rows that ``skip`` and ``size`` leave: at most ``size`` of them (0: all) after the first ``skip``.

    Raises:
        DataError: nothing is left.
    """
    end = min(available, spec.skip + spec.size) if spec.size else available
    if available == 0:
        raise DataError(f"{spec.source}: no rows in it")
    if spec.skip >= end:
        raise DataError(f"{spec.source}: skip={spec.skip} leaves none of its {available} rows; use a smaller skip")
    return range(spec.skip, end)
