"""The pooled key-value cache and the attention plans that read and write it.

There are two pools. A *prefix* row holds the keys and values of prompt tokens, prefilled once however many samples share
them; an *own* row holds what one running sequence has generated since. Both kinds of rows are kept dense (the last row moves
into a freed one), so that a decode step reads plain views of the pools and gathers nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from penstock.models.architecture import Slot
from penstock.models.attention import IndexArray, LayerAttention, Runs, Segments
from penstock.models.relative_attention import RelativeBias

STEP = 64
"""Positions are allocated in steps of this."""

Size = tuple[int, int]
"""Rows and positions."""


def round_up(value: int, step: int) -> int:
    return -(-value // step) * step


class CachePool:
    """Keys and values ``[rows, K, positions + 1, D or E]`` per slot; the last position takes the writes of idle rows."""

    def __init__(self, slots: Sequence[Slot], dtype: torch.dtype, device: torch.device) -> None:
        self.slots, self.dtype, self.device = slots, dtype, device
        self.cell = sum(slot.heads * (slot.key_width + slot.value_width) for slot in slots) * dtype.itemsize
        """Bytes of a token."""
        self.rows = self.positions = 0
        self.keys = [torch.zeros(0, slot.heads, 1, slot.key_width, dtype=dtype, device=device) for slot in slots]
        self.values = [torch.zeros(0, slot.heads, 1, slot.value_width, dtype=dtype, device=device) for slot in slots]

    @property
    def size(self) -> Size:
        return self.rows, self.positions

    @property
    def bytes(self) -> int:
        """Bytes held now."""
        return self.bytes_of(self.size)

    def bytes_of(self, size: Size) -> int:
        """Bytes of so many rows and positions."""
        return size[0] * (size[1] + 1) * self.cell

    def holds(self, size: Size) -> bool:
        return size[0] <= self.rows and size[1] <= self.positions

    def grown(self, size: Size) -> Size:
        """What to grow to for a size: positions double, so that creeping lengths do not copy the pool every time."""
        rows, positions = size
        if positions > self.positions:
            positions = round_up(max(positions, min(2 * self.positions, positions + 1024)), STEP)
        return max(rows, self.rows), max(positions, self.positions)

    def resize(self, size: Size) -> bool:
        """Make room for exactly so many rows and positions; what fits of the contents stays. Gives whether the pool moved."""
        if size == self.size:
            return False
        rows, positions = min(size[0], self.rows), min(size[1], self.positions)
        for tensors in (self.keys, self.values):
            for layer, old in enumerate(tensors):  # one at a time, so that only one is there twice
                new = old.new_zeros(size[0], old.shape[1], size[1] + 1, old.shape[3])
                new[:rows, :, :positions] = old[:rows, :, :positions]
                tensors[layer] = new
        self.rows, self.positions = size
        return True

    def clear(self) -> None:
        """Give all memory back; what was held is lost."""
        self.resize((0, 0))

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first ``length`` positions of a row to another, in every slot."""
        for tensor in (*self.keys, *self.values):
            tensor[target, :, :length] = tensor[source, :, :length]


class PrefillPlan:
    """Attention of prompt chunks: new keys and values go to the pool, queries see their row's cache up to themselves.

    Where no row has a beginning in the pool, the new tokens see each other alone, so that no mask is needed.
    """

    def __init__(self, pool: CachePool, rows: list[int], starts: list[int], counts: list[int]) -> None:
        self.pool, self.calls, device = pool, 0, pool.device
        start_R, count_R = np.asarray(starts, np.int64), np.asarray(counts, np.int64)
        end_R = start_R + count_R
        self.continued = bool(start_R.any())
        self.row_N, self.position_N = _places(rows, start_R, end_R, device)
        self.row_M, self.position_M = _places(rows, np.zeros_like(start_R), end_R, device)
        offset_R1 = (np.cumsum(count_R) - count_R - start_R)[:, None]
        self.asked = Runs(np.maximum(offset_R1 + np.arange(end_R.max()), 0), end_R, start_R)
        self.read, self.segments = Runs.of(end_R), dict[int | None, Segments]()
        self.last_RT: IndexArray | None = None
        """As of :class:`Segments`."""

    def attend(self, query_1HND: Tensor, key_1KND: Tensor, value_1KNE: Tensor, how: LayerAttention) -> Tensor:
        keys, values = self.pool.keys[self.calls], self.pool.values[self.calls]
        self.calls += 1
        query, key, value = (state[0].transpose(0, 1) for state in (query_1HND, key_1KND, value_1KNE))
        keys[self.row_N, :, self.position_N] = key.to(keys.dtype)
        values[self.row_N, :, self.position_N] = value.to(values.dtype)
        if self.continued:
            key, value = (pool[self.row_M, :, self.position_M] for pool in (keys, values))
        if how.window not in self.segments:
            self.segments[how.window] = Segments(self.asked, self.read, True, self.pool.device, how.window, self.last_RT)
        return self.segments[how.window].attend(query, key, value, how=how)[None]


def _places(rows: Sequence[int], start_R: IndexArray, end_R: IndexArray, device: torch.device) -> tuple[Tensor, Tensor]:
    """The cache row and the position in it of the tokens of each row, row after row."""
    row = np.repeat(np.asarray(rows, np.int64), end_R - start_R)
    position = np.concatenate([np.arange(start, end) for start, end in zip(start_R, end_R, strict=True)])
    return torch.from_numpy(row).to(device), torch.from_numpy(position).to(device)


class PoolView:
    """A pool's keys and values as they were handed to a step: first the keys of all slots, then the values."""

    def __init__(self, pool: CachePool, tensors: Sequence[Tensor]) -> None:
        self.keys, self.values = tensors[: len(pool.slots)], tensors[len(pool.slots) :]
        self.device = pool.device


class Cells:
    """Which rows share which prefix, as a ``[U, G]`` grid of the rows of each prefix (idle cells repeat row 0).

    ``row_UG`` gives the row of a cell, ``cell_B`` the flat cell of a row.
    """

    def __init__(self, prefix_of_row: Sequence[int], prefixes: int, width: int, rows: int) -> None:
        self.shape = (prefixes, width)
        self.row_UG = np.zeros((prefixes, width), np.int64)
        self.cell_B = np.zeros(rows, np.int64)
        filled = [0] * prefixes
        for row, prefix in enumerate(prefix_of_row):
            self.row_UG[prefix, filled[prefix]] = row
            self.cell_B[row] = prefix * width + filled[prefix]
            filled[prefix] += 1
        self.shared = list(prefix_of_row) != list(range(prefixes))
        """False where every row has a prefix of its own, in the same order: nothing needs to be rearranged then."""


class DecodePlan:
    """Attention of one decode step: one query a row, over its prefix and over its own cache.

    The queries of all rows that share a prefix meet its keys in one matrix product, so a prompt's keys are read once a
    step and not once a sample; scores over both parts go through one softmax (exact, nothing is merged after it).
    """

    def __init__(
        self,
        prefixes: PoolView,
        own: PoolView,
        cells: tuple[Tensor, Tensor],
        lengths: tuple[Tensor, Tensor],
        windows: tuple[Tensor, Tensor],
        shared: bool = True,
    ) -> None:
        """Args: the pools; ``row_UG`` and ``cell_B``; prefix and own lengths per row; positions of both windows; whether
        rows share prefixes at all.

        Nothing here becomes a Python number, so that a recorded step holds for other sizes too.
        """
        self.prefixes, self.own, self.shared = prefixes, own, shared
        self.row_UG, self.cell_B = cells
        prefix_length_B, own_length_B = lengths
        self.seen, self.window = windows
        self.calls = 0
        self.row_B = torch.arange(own_length_B.shape[0], device=own.device)
        self.position_B = own_length_B
        blocked = torch.cat([self.seen >= prefix_length_B[:, None], self.window > own_length_B[:, None]], 1)
        self.mask = torch.zeros(blocked.shape, device=own.device).masked_fill_(blocked, float("-inf"))[:, None, None]
        self.masks: dict[int | None, Tensor] = {None: self.mask}
        self.length_B1 = prefix_length_B[:, None]

    def _mask(self, window: int | None) -> Tensor:
        """What is added to the scores of a layer whose queries see so many keys."""
        if window is not None and window not in self.masks:
            own_B1 = self.position_B[:, None]
            far = torch.cat([own_B1 + self.length_B1 - self.seen >= window, own_B1 - self.window >= window], 1)
            self.masks[window] = self.mask.masked_fill(far[:, None, None], float("-inf"))
        return self.masks[window]

    def attend(self, query_BH1D: Tensor, key_BK1D: Tensor, value_BK1E: Tensor, how: LayerAttention) -> Tensor:
        slot, self.calls = self.calls, self.calls + 1
        keys, values = self.own.keys[slot], self.own.values[slot]
        place = self.row_B, self.position_B
        keys.transpose(1, 2).index_put_(place, key_BK1D[:, :, 0].to(keys.dtype))
        values.transpose(1, 2).index_put_(place, value_BK1E[:, :, 0].to(values.dtype))
        rows, heads, _, width = query_BH1D.shape
        seen, window = self.seen.shape[0], self.window.shape[0]
        query = query_BH1D.reshape(rows, key_BK1D.shape[1], -1, width)
        prefixes = self.row_UG.shape[0]
        shared_key = self.prefixes.keys[slot][:prefixes, :, :seen]
        shared_value = self.prefixes.values[slot][:prefixes, :, :seen]
        shared = self._to_rows(_scores(self._to_cells(query), shared_key))
        scores = torch.cat([shared, _scores(query, keys[:rows, :, :window])], -1)
        weight = how.weights(scores, self._mask(how.window)).to(values.dtype)
        out = torch.matmul(weight[..., seen:], values[:rows, :, :window])
        out = out + self._to_rows(torch.matmul(self._to_cells(weight[..., :seen]), shared_value))
        return out.reshape(rows, 1, heads, -1)

    # ---- the decoder of an encoder-decoder: its prefix is what the encoder read, attended to apart from its own tokens

    def bias(self, relative: RelativeBias) -> Tensor:
        """What is added to a step's scores of own tokens, ``[B, H, 1, W]``: by distance, and minus infinity past the row."""
        distance_BW = self.window - self.position_B[:, None]
        return relative.of(distance_BW).float().transpose(1, 2)[:, :, None] + self.mask[..., self.seen.shape[0] :]

    def own_attention(self, layer: int, query_BHD: Tensor, key_BHD: Tensor, value_BHD: Tensor, bias: Tensor) -> Tensor:
        """Attention ``[B, H, D]`` to a row's own tokens, unscaled; notes the new key and value first."""
        keys, values = self.own.keys[layer], self.own.values[layer]
        place = self.row_B, self.position_B
        keys.transpose(1, 2).index_put_(place, key_BHD.to(keys.dtype))
        values.transpose(1, 2).index_put_(place, value_BHD.to(values.dtype))
        rows, window = query_BHD.shape[0], self.window.shape[0]
        weight = (_scores(query_BHD[:, :, None], keys[:rows, :, :window]) + bias).softmax(-1).to(values.dtype)
        return torch.matmul(weight, values[:rows, :, :window])[:, :, 0]

    def cross_attention(self, layer: int, query_BHD: Tensor, module: Any) -> Tensor:
        """Attention ``[B, H, D]`` to what the encoder read, whose keys and values are in the prefix pool, unscaled."""
        seen, prefixes = self.seen.shape[0], self.row_UG.shape[0]
        key = self.prefixes.keys[layer][:prefixes, :, :seen]
        value = self.prefixes.values[layer][:prefixes, :, :seen]
        scores = self._to_rows(_scores(self._to_cells(query_BHD[:, :, None]), key))
        weight = (scores + self.mask[..., :seen]).softmax(-1).to(value.dtype)
        return self._to_rows(torch.matmul(self._to_cells(weight), value))[:, :, 0]

    def _to_cells(self, x_BKRD: Tensor) -> Tensor:
        """``[B, K, R, X]`` → ``[U, K, G · R, X]``: rows are next to those with which they share a prefix."""
        if not self.shared:
            return x_BKRD
        prefixes, group = self.row_UG.shape
        _, heads, repeat, width = x_BKRD.shape
        x = x_BKRD.index_select(0, self.row_UG.view(-1)).view(prefixes, group, heads, repeat, width)
        return x.transpose(1, 2).reshape(prefixes, heads, group * repeat, width)

    def _to_rows(self, x_UKCX: Tensor) -> Tensor:
        """The inverse: ``[U, K, G · R, X]`` → ``[B, K, R, X]``."""
        if not self.shared:
            return x_UKCX
        prefixes, group = self.row_UG.shape
        _, heads, cells, width = x_UKCX.shape
        repeat = cells // group
        x = x_UKCX.view(prefixes, heads, group, repeat, width).transpose(1, 2)
        return x.reshape(-1, heads, repeat, width).index_select(0, self.cell_B)


def _scores(query_XKRD: Tensor, key_XKTD: Tensor) -> Tensor:
    """``query · keyᵀ`` in float32, also from bfloat16 factors."""
    key = key_XKTD.transpose(-1, -2)
    if query_XKRD.dtype == torch.float32:
        return torch.matmul(query_XKRD, key)
    if query_XKRD.is_cuda:
        x, k, r, d = query_XKRD.shape
        flat = torch.bmm(query_XKRD.reshape(x * k, r, d), key.reshape(x * k, d, -1), out_dtype=torch.float32)
        return flat.view(x, k, r, -1)
    return torch.matmul(query_XKRD.float(), key.float())
