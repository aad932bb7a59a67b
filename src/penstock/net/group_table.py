"""A group as a table: the columns of its samples joined end to end.

A group of sixteen samples has eighty small arrays. Joined they are five, and a sample's are slices of them, so that a group
crosses in half the time that its samples take one by one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.types import Group, Prompt, PromptKey, Sample, SampleKey

JOINED = 1 << 16
"""Bytes of an array from which on it travels by itself: joining would copy it once more."""

_steps = attrgetter("action_T", "logp_T", "version_T", "reward_T")
_whole = attrgetter("key.sample", "finish", "text", "error", "extras", "marked")

Column = NDArray[Any] | list[Any]
"""Of all samples: joined, or one by one where that is not possible."""


def table_of(group: Group) -> tuple[Any, ...]:
    """What :func:`group_of` takes."""
    samples = group.samples
    prompts = [sample.key.prompt for sample in samples]
    names = dict.fromkeys(itertools.chain.from_iterable(sample.columns for sample in samples))
    return (
        group.prompt,
        group.origin,
        [len(sample.action_T) for sample in samples],
        {name: _joined([sample.columns.get(name) for sample in samples]) for name in names},
        [_joined(column) for column in zip(*map(_steps, samples), strict=True)],
        [list(column) for column in zip(*map(_whole, samples), strict=True)],
        [list(sample.blobs) for sample in samples],
        prompts if any(one != group.key for one in prompts) else [],
    )


def group_of(
    prompt: Prompt, origin: str, lengths: list[int], columns: dict[str, Column], steps: list[Column], whole: list[list[Any]],
    blobs: list[list[Any]], prompts: list[PromptKey],
) -> Group:  # fmt: skip
    """The group of a table. Of no ``prompts`` all samples are of ``prompt``.

    Raises:
        ValueError: the columns of the table have different lengths.
        DataError: those of a sample have.
    """
    if not lengths:
        return Group(prompt, (), origin)
    cut = _cutter(lengths)
    parts = {name: cut(column) for name, column in columns.items()}
    own = [{name: part[place] for name, part in parts.items() if part[place] is not None} for place in range(len(lengths))]
    keys = prompts or [prompt.key] * len(lengths)
    samples = tuple(
        Sample(
            SampleKey(key, number), columns, action_T, logp_T, version_T, finish, text, reward_T, error, extras, shown, marked
        )
        for key, columns, (action_T, logp_T, version_T, reward_T), (number, finish, text, error, extras, marked), shown in zip(
            keys, own, zip(*map(cut, steps), strict=True), zip(*whole, strict=True), map(tuple, blobs), strict=True
        )
    )
    return Group(prompt, samples, origin)


def _joined(column: Sequence[Any]) -> Column:
    first = column[0]
    if type(first) is np.ndarray and first.dtype.isnative:
        kind, step = first.dtype, first.shape[1:]
        if all(
            type(one) is np.ndarray and one.dtype == kind and one.shape[1:] == step and one.nbytes < JOINED for one in column
        ):
            return np.concatenate(column)
    return list(column)


def _cutter(lengths: list[int]) -> Callable[[Column], Sequence[Any]]:
    """What gives each sample's part of a column."""
    ends = list(itertools.accumulate(lengths, initial=0))
    spans = [slice(*span) for span in itertools.pairwise(ends)]

    def cut(column: Column) -> Sequence[Any]:
        if isinstance(column, list):
            return column
        if len(column) != ends[-1]:
            raise ValueError(f"a column of {len(column)} steps for {ends[-1]}")
        return [column[span] for span in spans]

    return cut
