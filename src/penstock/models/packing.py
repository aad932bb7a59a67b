"""The packing of language policies: rows of labelled tokens laid out as micro-batches under a token budget.

``B`` rows of a micro-batch, ``T`` tokens of its longest row, ``N`` packed tokens, ``A`` action tokens. Attention works on
padded ``[B, T]`` cells, everything else on packed tokens; so rows of like length share a micro-batch, and a prefix that the
rows of a unit have in common is packed once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import Batch
from penstock.core.errors import DataError
from penstock.core.types import PART, FloatArray, IntArray, Row, Unit, require_steps
from penstock.models.experts import ROUTES, Routes
from penstock.models.media import MEDIA, Names


@dataclass(frozen=True, kw_only=True)
class TokenBatch(Batch):
    """Rows laid out as one packed micro-batch; all arrays are numpy and index each other.

    ``N`` packed tokens (a prefix shared by the rows of a unit is there once), ``A`` action tokens, ``B`` rows. Attention
    expands the packed tokens to ``[B, T]`` by ``gather_BT`` (cells past a row's end repeat some valid index; they come
    after every real token, so causal attention never reads them) and returns to packed order by ``scatter_N``, an index
    into the flattened ``[B * T]``.
    """

    tokens_N: IntArray
    position_N: IntArray
    gather_BT: IntArray
    scatter_N: IntArray
    length_B: IntArray
    source_A: IntArray
    """Packed index of the hidden state that predicts each action token."""
    target_A: IntArray
    """The action tokens themselves."""
    last_B: IntArray
    """Packed index of each row's last token."""
    routes_N: Routes | None = None
    """The experts of each token, ``[N, L, K]``, where they are to be replayed."""
    media_N: Names | None = None
    """The medium that each token shows a part of, 0 for text; None where no row has media."""


def idle_batch() -> TokenBatch:
    """A micro-batch of two tokens whose outputs nobody reads: the padding micro-batch of a rank that has none of its own."""
    none, both, one = np.zeros(1, np.int32), np.arange(2, dtype=np.int32), np.ones(1, np.int32)
    return TokenBatch(
        tokens_N=both, position_N=both, gather_BT=both[None], scatter_N=both, length_B=2 * one,
        source_A=none, target_A=none, row_A=none, last_B=one, unit_B=none, fields={}, row_ids=(0,),
    )  # fmt: skip


@dataclass(frozen=True)
class _Measured:
    """A unit with what packing needs to know: its rows' first position in the input, shared prefix and sizes in tokens."""

    unit: Unit
    first_row: int
    prefix: int
    longest: int
    packed: int

    @classmethod
    def of(cls, unit: Unit, first_row: int, prefix: int) -> _Measured:
        lengths = [len(part.tokens_T) for row in unit for part in sequences(row)]
        return cls(unit, first_row, prefix, max(lengths), sum(lengths) - prefix * (len(lengths) - 1))

    def part(self, start: int, end: int) -> _Measured:
        """The rows from ``start`` to ``end``; a single one shares nothing."""
        return self.of(self.unit[start:end], self.first_row + start, self.prefix if end - start > 1 else 0)


def lay_out(
    units: Sequence[Unit], token_budget: int, share_prefix: bool, coupled: bool = True, routes: bool = False
) -> list[TokenBatch]:
    """Lay units out as micro-batches of at most ``token_budget`` packed tokens each, longest rows first.

    Where the rows of a unit are ``coupled`` it is never split; one that is longer than the budget gets a micro-batch of its
    own. Else it is split between rows, and each part repeats the shared prefix; a longer row is by itself. Rows of a
    micro-batch may differ in length: attention works on buckets of like lengths, or on packed rows, and wastes little.
    ``row_ids`` of a batch are positions in the flattened input, by which results go back in input order. With ``routes`` those
    of the rows' tokens come along, and a prefix is shared so far as they are the same.

    Raises:
        DataError: an empty unit or row, an action on a row's first token (nothing predicts it), fields that differ
            between rows or have the wrong length, or a row without routes; names the row and the field.
    """
    measured: list[_Measured] = []
    first_row = 0
    for unit in units:
        whole = _measure(unit, first_row, share_prefix, routes)
        measured += [whole] if coupled or whole.packed <= token_budget else _parts(whole, token_budget)
        first_row += len(unit)
    check_fields([row for unit in units for row in unit])
    batches: list[TokenBatch] = []
    waiting: list[_Measured] = []
    filled = 0
    for item in sorted(measured, key=lambda item: -item.longest):
        filled += item.packed
        if waiting and filled > token_budget:
            batches.append(_pack(waiting, routes))
            waiting, filled = [], item.packed
        waiting.append(item)
    return [*batches, _pack(waiting, routes)] if waiting else batches


def _measure(unit: Unit, first_row: int, share_prefix: bool, routes: bool) -> _Measured:
    if not unit:
        raise DataError(f"the unit before row {first_row} has no rows; leave it out")
    for offset, row in enumerate(unit):
        if len(row.tokens_T) == 0 or len(row.tokens_T) != len(row.action_T):
            raise DataError(
                f"row {first_row + offset}: {len(row.tokens_T)} tokens and {len(row.action_T)} action marks; "
                "a row needs at least one token and one mark a token"
            )
        require_steps(f"row {first_row + offset}", len(row.action_T), row.columns)
        if row.action_T[0]:
            raise DataError(f"row {first_row + offset}: its first token is an action, but no token before predicts it")
        if routes and ROUTES not in row.columns:
            raise DataError(
                f"row {first_row + offset}: no column {ROUTES}; generate it with an engine that notes routes, or set "
                "learner.replay_routes=false"
            )
    parts = tuple(part for row in unit for part in sequences(row))
    return _Measured.of(unit, first_row, shared_prefix(parts, routes) if share_prefix else 0)


def _parts(whole: _Measured, budget: int) -> Iterator[_Measured]:
    """A unit as parts of consecutive rows of at most ``budget`` packed tokens each, unless it is one row."""
    start, packed = 0, whole.prefix
    for row, length in enumerate([*(len(row.tokens_T) for row in whole.unit), budget + whole.prefix + 1]):
        if row > start and packed + length - whole.prefix > budget:
            yield whole.part(start, row)
            start, packed = row, whole.prefix
        packed += length - whole.prefix


def shared_prefix(unit: Unit, routes: bool = False) -> int:
    """Tokens at the front that all rows have in common (and their ``routes``), none of them an action, with at least one more
    token in each row.

    A unit of one row shares nothing.
    """
    if len(unit) < 2:
        return 0
    first, shown = unit[0].tokens_T, any(MEDIA in row.columns for row in unit)
    limit = min(len(row.tokens_T) for row in unit) - 1
    for row in unit:
        stop = (row.tokens_T[:limit] != first[:limit]) | row.action_T[:limit]
        if routes:
            stop |= (row.columns[ROUTES][:limit] != unit[0].columns[ROUTES][:limit]).any((1, 2))
        if shown:
            stop |= names_of(row)[:limit] != names_of(unit[0])[:limit]
        if stop.any():
            limit = int(stop.argmax())
    return limit


def names_of(row: Row) -> Names:
    """The medium of each token of a row, 0 for text."""
    found: Names | None = row.columns.get(MEDIA)
    return np.zeros(len(row.action_T), np.int64) if found is None else found


def check_fields(rows: Sequence[Row]) -> None:
    """Refuse rows whose fields differ in name, or do not fit their actions. Raises DataError."""
    for index, row in enumerate(rows):
        first, actions = rows[0].fields, int(np.count_nonzero(row.action_T))
        if row.fields.keys() != first.keys():
            odd = ", ".join(sorted(row.fields.keys() ^ first.keys()))
            raise DataError(f"row {index}: the fields of all rows must have the same names; {odd} is not in every row")
        for name, value in row.fields.items():
            size, like = np.shape(value), np.shape(first[name])
            if (len(size), size[1:]) != (len(like), like[1:]):
                raise DataError(
                    f'row {index}: field "{name}" is a number in some rows and an array in others, or its axes differ'
                )
            if size and size[0] != actions:
                raise DataError(
                    f'row {index}: field "{name}" has {size[0]} entries for {actions} action tokens; give one an action'
                )


def sequences(row: Row) -> list[Row]:
    """A row that is several sequences (:data:`PART`) as those that have actions; any other as it is."""
    if PART not in row.columns:
        return [row]
    parts = np.split(np.arange(len(row.action_T)), 1 + np.flatnonzero(np.diff(row.columns[PART])))
    found = [Row({name: column[at] for name, column in row.columns.items()}, row.action_T[at]) for at in parts]
    return [one for one in found if one.action_T.any()] or found[-1:]


def _pack(items: Sequence[_Measured], routes: bool) -> TokenBatch:
    whole = [row for item in items for row in item.unit]
    cut = [[sequences(row) for row in item.unit] for item in items]
    rows = [part for unit in cut for parts in unit for part in parts]
    owner_B = np.repeat(np.arange(len(whole)), [len(parts) for unit in cut for parts in unit])
    sizes = [sum(map(len, unit)) for unit in cut]
    prefix_U = np.array([item.prefix for item in items])
    length_B = np.array([len(row.tokens_T) for row in rows])
    unit_B = np.repeat(np.arange(len(items)), sizes)
    prefix_B = prefix_U[unit_B]
    B, T = len(rows), int(length_B.max())

    # Packed order is one segment a prefix, then one a row, unit by unit.
    first_U = np.cumsum([0, *sizes[:-1]])
    prefix_slot_U = first_U + np.arange(len(items))
    own_slot_B = np.arange(B) + unit_B + 1
    segment_row = np.zeros(B + len(items), np.int64)
    segment_row[prefix_slot_U], segment_row[own_slot_B] = first_U, np.arange(B)
    segment_length = np.zeros_like(segment_row)
    segment_length[prefix_slot_U], segment_length[own_slot_B] = prefix_U, length_B - prefix_B
    segment_position = np.zeros_like(segment_row)
    segment_position[own_slot_B] = prefix_B
    segment_start = np.cumsum(segment_length) - segment_length

    row_N = np.repeat(segment_row, segment_length)
    position_N = np.arange(len(row_N)) + np.repeat(segment_position - segment_start, segment_length)
    prefix_start_B, own_start_B = segment_start[prefix_slot_U][unit_B], segment_start[own_slot_B]
    t_BT = np.minimum(np.arange(T), length_B[:, None] - 1)
    gather_BT = np.where(
        t_BT < prefix_B[:, None], prefix_start_B[:, None] + t_BT, (own_start_B - prefix_B)[:, None] + t_BT
    ).astype(np.int32)

    shown = any(MEDIA in row.columns for row in rows)
    tokens = np.concatenate([row.tokens_T for row in rows])
    action = np.concatenate([row.action_T for row in rows])
    row_start_B = np.cumsum(length_B) - length_B
    row_A = np.repeat(np.arange(B), length_B)[action]
    t_A = np.flatnonzero(action) - row_start_B[row_A]
    place_N = row_start_B[row_N] + position_N
    return TokenBatch(
        tokens_N=_int(tokens[place_N]),
        position_N=_int(position_N),
        gather_BT=gather_BT,
        scatter_N=_int(row_N * T + position_N),
        length_B=_int(length_B),
        source_A=gather_BT[row_A, t_A - 1],
        target_A=_int(tokens[action]),
        row_A=_int(owner_B[row_A]),
        last_B=gather_BT[np.arange(B), length_B - 1][np.searchsorted(owner_B, np.arange(len(whole)), "right") - 1],
        unit_B=_int(np.repeat(np.arange(len(items)), [len(item.unit) for item in items])),
        fields=fields_of(whole),
        row_ids=tuple(item.first_row + offset for item in items for offset in range(len(item.unit))),
        routes_N=np.concatenate([row.columns[ROUTES] for row in rows])[place_N] if routes else None,
        media_N=np.concatenate([names_of(row) for row in rows])[place_N] if shown else None,
    )


def _int(values: NDArray[Any]) -> NDArray[np.int32]:
    return values.astype(np.int32)


def fields_of(rows: Sequence[Row]) -> dict[str, FloatArray]:
    """The fields of rows together: per action one after the other, or one number a row."""
    return {name: _field([row.fields[name] for row in rows]) for name in rows[0].fields}


def _field(values: Sequence[float | FloatArray]) -> FloatArray:
    if np.ndim(values[0]):
        return np.concatenate(values).astype(np.float32)
    return np.array(values, np.float32)
