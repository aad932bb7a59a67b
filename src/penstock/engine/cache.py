"""The pooled key-value cache and the attention plans that read and write it.

One row of the pool holds one sequence. Rows ``0 … decode_rows-1`` are decoded together and are kept dense (a finished
sequence's row is filled by the last one), so that a decode step reads plain views of the pool and gathers nothing. The rows
behind them hold prefixes: a prompt is prefilled once into a prefix row and copied from there to the rows of its samples.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

ROUND = 64
"""Positions are allocated, and decode windows rounded up, in steps of this."""


class CachePool:
    """Keys and values ``[rows, K, positions + 1, D]`` per layer; the last position takes the writes of idle rows."""

    def __init__(self, config: Any, rows: int, dtype: torch.dtype, device: torch.device) -> None:
        heads = config.num_attention_heads
        self.key_value_heads = getattr(config, "num_key_value_heads", None) or heads
        self.width = getattr(config, "head_dim", None) or config.hidden_size // heads
        self.layers = config.num_hidden_layers
        self.rows, self.dtype, self.device = rows, dtype, device
        self.positions = 0
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def ensure(self, positions: int) -> bool:
        """Grow to hold sequences of ``positions`` tokens; contents stay. Gives True if the pool moved."""
        if positions <= self.positions:
            return False
        target = -(-max(positions, min(2 * self.positions, positions + 1024)) // ROUND) * ROUND
        shape = (self.rows, self.key_value_heads, target + 1, self.width)
        for layer in range(self.layers):
            for tensors in (self.keys, self.values):
                grown = torch.zeros(shape, dtype=self.dtype, device=self.device)
                if layer < len(tensors):
                    grown[:, :, : self.positions] = tensors[layer][:, :, : self.positions]
                    tensors[layer] = grown
                else:
                    tensors.append(grown)
        self.positions = target
        return True

    def copy(self, source: int, targets: list[int], length: int) -> None:
        """Copy the first ``length`` positions of a row to other rows, in every layer."""
        for tensor in (*self.keys, *self.values):
            tensor[targets, :, :length] = tensor[source, :, :length]


class PrefillPlan:
    """Attention of prompt chunks: new keys and values go to the pool, queries see their row's cache up to themselves."""

    def __init__(self, pool: CachePool, rows: list[int], starts: list[int], counts: list[int]) -> None:
        device = pool.device
        self.pool = pool
        self.longest = max(start + count for start, count in zip(starts, counts, strict=True))
        width = max(counts)
        self.row_N = torch.tensor([row for row, count in zip(rows, counts, strict=True) for _ in range(count)], device=device)
        self.position_N = torch.tensor(
            [start + i for start, count in zip(starts, counts, strict=True) for i in range(count)], device=device
        )
        cell, gather, offset = [], [], 0
        for r, count in enumerate(counts):
            cell += [r * width + i for i in range(count)]
            gather += [offset + min(i, count - 1) for i in range(width)]
            offset += count
        self.cell_N = torch.tensor(cell, device=device)
        self.gather = torch.tensor(gather, device=device)
        self.rows_R = torch.tensor(rows, device=device)
        self.shape = (len(rows), width)
        query_position = self.position_N.index_select(0, self.gather).view(*self.shape, 1)
        self.mask = (torch.arange(self.longest, device=device) <= query_position)[:, None]

    def attend(self, layer: int, query_1HND: Tensor, key_1KND: Tensor, value_1KND: Tensor, scale: float) -> Tensor:
        keys, values = self.pool.keys[layer], self.pool.values[layer]
        keys[self.row_N, :, self.position_N] = key_1KND[0].transpose(0, 1).to(keys.dtype)
        values[self.row_N, :, self.position_N] = value_1KND[0].transpose(0, 1).to(values.dtype)
        key = keys[self.rows_R, :, : self.longest]
        value = values[self.rows_R, :, : self.longest]
        heads, width = query_1HND.shape[1], query_1HND.shape[3]
        query = query_1HND[0].index_select(1, self.gather).view(heads, *self.shape, width).transpose(0, 1)
        out = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=self.mask, scale=scale, enable_gqa=heads != key.shape[1]
        )
        return out.transpose(1, 2).reshape(-1, heads, width).index_select(0, self.cell_N)[None]


class DecodePlan:
    """Attention of one decode step of the first ``count`` rows, one query each, over a window of the cache.

    The queries of one key-value head stand as the query axis, so grouped heads read each key once.
    """

    def __init__(self, pool: CachePool, position_B: Tensor, window: int) -> None:
        self.pool = pool
        self.longest = window
        self.count = position_B.shape[0]
        self.row_B = torch.arange(self.count, device=pool.device)
        self.position_B = position_B.clamp(max=pool.positions)
        blocked = torch.arange(window, device=pool.device) > position_B[:, None]
        self.mask = torch.zeros(blocked.shape, dtype=pool.dtype, device=pool.device).masked_fill_(blocked, float("-inf"))
        self.mask = self.mask[:, None, None]

    def attend(self, layer: int, query_BH1D: Tensor, key_BK1D: Tensor, value_BK1D: Tensor, scale: float) -> Tensor:
        keys, values = self.pool.keys[layer], self.pool.values[layer]
        keys[self.row_B, :, self.position_B] = key_BK1D[:, :, 0].to(keys.dtype)
        values[self.row_B, :, self.position_B] = value_BK1D[:, :, 0].to(values.dtype)
        heads, width = query_BH1D.shape[1], query_BH1D.shape[3]
        query = query_BH1D.reshape(self.count, keys.shape[1], -1, width)
        key = keys[: self.count, :, : self.longest]
        value = values[: self.count, :, : self.longest]
        out = functional.scaled_dot_product_attention(query, key, value, attn_mask=self.mask, scale=scale)
        return out.reshape(self.count, 1, heads, width)
