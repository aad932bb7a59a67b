"""A source held in memory, and the slice of rows that a spec asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.config.run import DataSpec
from penstock.core.errors import DataError

DataRow = Mapping[str, Any]


@dataclass
class Rows:
    """Rows of data under a name; fulfils the Source protocol."""

    name: str
    rows: Sequence[DataRow]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> DataRow:
        return self.rows[index]


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
