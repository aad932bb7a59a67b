"""One attention function for every decoder architecture of transformers, driven by a plan.

transformers looks its attention up in a registry by name. We register one function, ``penstock``; it gives queries, keys and
values (after rotary embedding, before any cache) to the *plan* that the caller passed to the model's forward. The learner's
plan attends within packed rows; the generator's plans read and write its pooled cache. So model classes are reused as they
are, and who owns the memory is decided outside them.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface
from transformers.utils import logging as transformers_logging

from penstock.core.errors import ModelError

NAME = "penstock"

IndexArray = NDArray[np.integer[Any]]

_REFUSED_UNLESS_NONE = {"softcap", "s_aux", "head_mask", "position_bias"}


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """transformers reports every new head and registry name as a problem; our own errors say what matters."""
    if not torch.accelerator.is_available():  # what deepspeed finds out when a save imports it, and else warns of every time
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    before = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        transformers_logging.set_verbosity(before)


class AttentionPlan(Protocol):
    """How one forward pass attends. ``heads`` H may be a multiple of key-value heads K (grouped queries)."""

    longest: int
    """Most keys that any query of this pass may see."""

    def attend(self, layer: int, query_1HND: Tensor, key_1KND: Tensor, value_1KND: Tensor, scale: float) -> Tensor:
        """Attention output ``[1, N, H, D]`` (or ``[B, 1, H, D]`` for a decode step of ``[B, H, 1, D]`` queries)."""
        ...


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    plan: AttentionPlan | None = None,
    **rest: Any,
) -> tuple[Tensor, None]:
    """The function behind the registry name; refuses whatever it would otherwise silently leave out."""
    if plan is None:
        raise ModelError(f"{type(module).__name__} did not pass on the attention plan; this architecture is not supported")
    window = rest.get("sliding_window")
    if window is not None and plan.longest > window:
        raise ModelError(
            f"a sequence of {plan.longest} tokens is longer than the sliding window ({window}) of {type(module).__name__}; "
            f"use shorter sequences"
        )
    for name in _REFUSED_UNLESS_NONE:
        if rest.get(name) is not None:
            raise ModelError(f"{type(module).__name__} asks for {name}, which Penstock's attention does not compute")
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    return plan.attend(int(module.layer_idx), query, key, value, scale), None  # type: ignore[arg-type]


def register() -> None:
    """Make ``penstock`` known to transformers (idempotent)."""
    AttentionInterface.register(NAME, _attention)


@dataclass(frozen=True)
class Bucket:
    """Runs of packed queries and keys of like size, which are attended in one call."""

    queries: Tensor
    """Packed index of each query cell, flattened ``[R · Q]``; cells past a run's end repeat its last query."""
    keys: Tensor
    """Packed index of each key cell, flattened ``[R · K]``."""
    shape: tuple[int, int, int]
    """R runs, Q queries and K keys of the longest."""
    allowed: Tensor | None
    """Which keys a query may see, ``[R or 1, 1, Q or 1, K]``; None: all, or those up to its own where that is said."""


def attend_in_buckets(
    buckets: Sequence[Bucket],
    place_N: Tensor,
    states: tuple[Tensor, Tensor, Tensor],
    masks: Sequence[Tensor | None],
    *,
    scale: float,
    causal: bool = False,
) -> Tensor:
    """Attention output ``[N, H, D]`` by buckets; ``states`` are packed queries ``[N, H, D]``, keys and values ``[M, K, D]``.

    ``masks`` are added to the scores, one a bucket (None: nothing is hidden, or with ``causal`` what comes after a query). Cell
    ``place_N[n]`` of the buckets, one after the other, holds the answer of packed query n.
    """
    heads, width = states[0].shape[1:]
    query_NW, key_MW, value_MW = (state.flatten(1) for state in states)
    parts = []
    for bucket, mask in zip(buckets, masks, strict=True):
        rows, asked, seen = bucket.shape
        query = query_NW.index_select(0, bucket.queries).view(rows, asked, heads, width).transpose(1, 2)
        key = key_MW.index_select(0, bucket.keys).view(rows, seen, -1, width).transpose(1, 2)
        value = value_MW.index_select(0, bucket.keys).view(rows, seen, -1, width).transpose(1, 2)
        out = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=causal and mask is None, scale=scale, enable_gqa=heads != key.shape[1]
        )
        parts.append(out.transpose(1, 2).reshape(rows * asked, heads * width))
    return torch.cat(parts).index_select(0, place_N).view(-1, heads, width)


class PackedPlan:
    """Causal attention within the rows of a packed batch, without a cache (learner, scoring).

    A prefix that rows of a unit share is once among the packed tokens: every other layer computes it once, here each
    row reads it, and only the row that owns it asks for its outputs. Rows are attended in buckets of like length, because
    attention pays for padding in two dimensions.

    Args:
        gather_BT: packed index of each cell; cells past a row's end repeat a valid index.
        scatter_N: the flat cell ``b · T + t`` that owns each packed token.
        length_B: tokens of each row.
    """

    def __init__(
        self, gather_BT: IndexArray, scatter_N: IndexArray, length_B: IndexArray, device: torch.device | str = "cpu"
    ) -> None:
        rows, width = gather_BT.shape
        self.longest = int(length_B.max())
        cells = np.arange(rows * width).reshape(rows, width)
        owned_BT = (scatter_N[gather_BT] == cells) & (np.arange(width) < length_B[:, None])
        start_B = np.where(owned_BT.any(1), owned_BT.argmax(1), length_B - 1)
        place_N = np.zeros(len(scatter_N), np.int64)
        self.buckets: list[Bucket] = []
        offset = 0
        for members in bucket_by_length(length_B - start_B, length_B, 0.15 if torch.device(device).type == "cpu" else 0.5):
            bucket = self._bucket(members, gather_BT, start_B, length_B, device)
            asked = start_B[members, None] + np.arange(bucket.shape[1])
            valid = asked < length_B[members, None]
            at = np.arange(offset, offset + valid.size).reshape(valid.shape)
            token = gather_BT[members[:, None], np.minimum(asked, width - 1)]
            mine = valid & (scatter_N[token] == members[:, None] * width + asked)
            place_N[token[mine]] = at[mine]
            offset += valid.size
            self.buckets.append(bucket)
        self.place_N = torch.from_numpy(place_N).to(device)

    @staticmethod
    def _bucket(
        members: IndexArray, gather_BT: IndexArray, start_B: IndexArray, length_B: IndexArray, device: torch.device | str
    ) -> Bucket:
        start, length = start_B[members, None], length_B[members, None]
        asked, seen = int((length - start).max()), int(length.max())
        query_position = np.minimum(start + np.arange(asked), length - 1)
        key_position = np.minimum(np.arange(seen), length - 1)
        mask = None
        if start.any():
            allowed = torch.from_numpy(np.arange(seen) <= query_position[:, :, None]).to(device)
            mask = allowed[:, None]
        return Bucket(
            queries=torch.from_numpy(gather_BT[members[:, None], query_position].astype(np.int64).reshape(-1)).to(device),
            keys=torch.from_numpy(gather_BT[members[:, None], key_position].astype(np.int64).reshape(-1)).to(device),
            shape=(len(members), asked, seen),
            allowed=mask,
        )

    def attend(self, layer: int, query_1HND: Tensor, key_1KND: Tensor, value_1KND: Tensor, scale: float) -> Tensor:
        states = (query_1HND[0].transpose(0, 1), key_1KND[0].transpose(0, 1), value_1KND[0].transpose(0, 1))
        masks = [bucket.allowed for bucket in self.buckets]
        return attend_in_buckets(self.buckets, self.place_N, states, masks, scale=scale, causal=True)[None]


def bucket_by_length(queries_B: IndexArray, keys_B: IndexArray, waste: float) -> list[IndexArray]:
    """Rows in buckets whose attention area is padded by at most the share ``waste``, largest first."""
    order = np.lexsort((-keys_B, -queries_B))
    buckets: list[list[int]] = []
    area = 0.0
    for row in order:
        own = float(queries_B[row] * keys_B[row])
        if buckets:
            members = [*buckets[-1], int(row)]
            padded = len(members) * queries_B[members].max() * keys_B[members].max()
            if (area + own) >= (1 - waste) * padded:
                buckets[-1].append(int(row))
                area += own
                continue
        buckets.append([int(row)])
        area = own
    return [np.asarray(bucket, np.int64) for bucket in buckets]


def single_row_plan(length: int, device: torch.device | str = "cpu") -> PackedPlan:
    """The plan of one unpacked sequence."""
    index = np.arange(length)
    return PackedPlan(index[None], index, np.asarray([length]), device)
