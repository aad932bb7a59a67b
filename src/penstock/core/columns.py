"""Columns: what an algorithm reads in addition to its groups, an output of a model over a batch before it is trained on.

A file that brings a column registers it here by name. Built in are "reference" and "proximal", the log-probs under the frozen
reference and under the learner, "value", those of its critic, and "bootstrap", what lies behind a sample that was cut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from penstock.core.errors import SpecError
from penstock.core.types import Group, Row, Sample, Unit


def sample_rows(groups: Sequence[Group]) -> list[Unit]:
    """Bare rows of every sample, a unit per group, to be scored."""
    return [tuple(Row(sample.columns, sample.action_T) for sample in group.samples) for group in groups]


def by_sample(groups: Sequence[Group], values: Sequence[Any]) -> list[list[Any]]:
    """One value a row of :func:`sample_rows`, ``[group][sample]``."""
    left = iter(values)
    return [[next(left) for _ in group.samples] for group in groups]


@dataclass(frozen=True)
class Column:
    """What fills a column: an output of a model over some rows, computed for the whole batch before it is trained on."""

    model: Literal["learner", "reference", ""]
    """Whose output it is; empty: it is computed from the groups alone."""
    output: str = ""
    rows: Callable[[Sequence[Group]], list[Unit]] = sample_rows
    """What is scored. Columns that score the same rows by the same model share a pass."""
    read: Callable[[Sequence[Group], Sequence[Any]], list[list[Any]]] = by_sample
    """From the groups and the output of each row to a value for each sample."""
    extra: str = ""
    """Name among a sample's extras of the output at every step, where another process has computed it."""
    field: str = ""
    """Name of the rows' field that it fills for algorithms on data; empty: they cannot have it."""


COLUMNS: dict[str, Column] = {}
"""What algorithms may need, by name."""


def register_column(name: str, column: Column) -> None:
    """Let algorithms need a column of this name. Raises SpecError where another one has the name."""
    if COLUMNS.setdefault(name, column) != column:
        raise SpecError(f'two columns are named "{name}"; rename one')


def column_named(name: str) -> Column:
    """Raises SpecError where nobody has registered the name."""
    if name not in COLUMNS:
        raise SpecError(f'nobody has registered a column "{name}"; known are {", ".join(sorted(COLUMNS))}')
    return COLUMNS[name]


REFERENCE_LOGP = "reference_logp_T"
"""Name among a sample's extras of the reference's log-probs, where another process has computed them."""


def was_cut(sample: Sample) -> bool:
    """Whether a sample would have gone on: its environment says so, or it was cut at its longest length."""
    return bool(sample.extras.get("truncated", sample.finish == "length"))


def cut_rows(groups: Sequence[Group]) -> list[Unit]:
    """The samples that were cut, as bare rows."""
    return [(Row(s.columns, s.action_T),) for group in groups for s in group.samples if was_cut(s)]


def end_values(groups: Sequence[Group], values: Sequence[Any]) -> list[list[float]]:
    """The end value of each of :func:`cut_rows`, and 0 for samples that ended, ``[group][sample]``."""
    left = iter(values)
    return [[float(next(left)) if was_cut(s) else 0.0 for s in group.samples] for group in groups]


register_column("reference", Column("reference", "logp", extra=REFERENCE_LOGP, field="reference_logp"))
register_column("value", Column("learner", "value"))
register_column("proximal", Column("learner", "logp"))
register_column("bootstrap", Column("learner", "end_value", cut_rows, end_values))
