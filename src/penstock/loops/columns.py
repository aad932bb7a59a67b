"""Filling the columns that an algorithm needs: for groups of samples and for rows of data, from the same registered columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from penstock.core.algorithm import FromData
from penstock.core.columns import Column, column_named
from penstock.core.contracts import Columns, Learner, Scorer
from penstock.core.errors import TrainingError
from penstock.core.types import BoolArray, FloatArray, Group, Unit, with_field

LOGP = frozenset({"logp"})

Rows = Callable[[Sequence[Group]], list[Unit]]


def filled(needs: frozenset[str], groups: Sequence[Group], learner: Learner, reference: Scorer | None) -> Columns:
    """The named columns of a batch, ``[group][sample]``; each model sees the same rows once.

    Raises:
        TrainingError: a column is the reference's, and there is no reference.
    """
    columns = {name: column_named(name) for name in sorted(needs)}
    found = {name: written(groups, column) for name, column in columns.items()}
    passes: dict[tuple[str, Rows], dict[str, Column]] = {}
    for name, column in columns.items():
        if found[name] is None and not column.model:
            found[name] = column.read(groups, ())
        elif found[name] is None:
            passes.setdefault((column.model, column.rows), {})[name] = column
    if reference is not None and reference.gives_values:  # it shares the trunk of the learner's critic
        _share_pass(passes)
    for (model, rows), asked in passes.items():
        units = rows(groups)
        score = needed(reference).score if model == "reference" else learner.score
        scores = score(units, frozenset(column.output for column in asked.values())) if units else {}
        found |= {name: column.read(groups, scores.get(column.output, [])) for name, column in asked.items()}
    return {name: column for name, column in found.items() if column is not None}


def _share_pass(passes: dict[tuple[str, Rows], dict[str, Column]]) -> None:
    for (model, rows), asked in list(passes.items()):
        own = passes.get(("learner", rows), {})
        if model == "reference":
            asked |= {name: own.pop(name) for name in list(own) if own[name].output == "value"}
            passes.pop(("learner", rows), None) if not own else None


def needed(reference: Scorer | None) -> Scorer:
    """The reference. Raises TrainingError where there is none."""
    if reference is None:
        raise TrainingError("the algorithm needs a reference model, and there is none")
    return reference


def labelled(
    algorithm: FromData, units: Sequence[Unit], learner: Learner, reference: Scorer | None = None, *, baseline: bool = True
) -> Sequence[Unit]:
    """Units of data with the fields of the columns that an algorithm needs, and with its baseline, for a whole batch before it
    is split. Nothing here has a gradient, and nothing is kept from batch to batch.

    Args:
        baseline: false leaves the baseline out, which an assessment does not read.

    Raises:
        TrainingError: a reference is needed, and there is none; or a column has no field for data.
    """
    for name in sorted(algorithm.needs):
        column = column_named(name)
        if not column.field:
            raise TrainingError(f'the column "{name}" is one of samples; an algorithm on data cannot need it')
        score = needed(reference).score if column.model == "reference" else learner.score
        units = with_field(units, column.field, score(units, frozenset({column.output}))[column.output])
    if algorithm.has_baseline and baseline:

        def policy_logp(units: Sequence[Unit]) -> list[FloatArray]:
            return learner.score(units, LOGP)["logp"]

        def reference_logp(units: Sequence[Unit]) -> list[FloatArray]:
            return needed(reference).score(units, LOGP)["logp"]

        units = algorithm.with_baseline(units, policy_logp, reference_logp)
    return units


def column_changes(name: str, scorer: Scorer, group: Group) -> list[dict[str, Any]]:
    """A column of a group's samples as another process writes it, among their extras.

    By step rather than by action: actions that have become too old may be left out before the group is trained on.
    """
    column = column_named(name)
    values = scorer.score(column.rows([group]), frozenset({column.output}))[column.output]
    return [
        {"extras": {column.extra: _at_actions(sample.action_T, value_A)}}
        for sample, value_A in zip(group.samples, values, strict=True)
    ]


def _at_actions(action_T: BoolArray, value_A: FloatArray) -> FloatArray:
    value_T = np.zeros(len(action_T), np.float32)
    value_T[action_T] = value_A
    return value_T


def written(groups: Sequence[Group], column: Column) -> list[list[FloatArray]] | None:
    """What :func:`column_changes` wrote of a column, if all samples have it."""
    samples = [sample for group in groups for sample in group.samples]
    if not column.extra or not samples or not all(column.extra in sample.extras for sample in samples):
        return None
    return [[sample.extras[column.extra][sample.action_T] for sample in group.samples] for group in groups]
