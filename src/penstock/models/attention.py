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


@contextmanager
def eager_attention(network: Any) -> Iterator[None]:
    """Within it a network attends by transformers' own functions; our name means nothing to who reads its configuration."""
    with quiet_transformers():
        network.set_attn_implementation("eager")
        try:
            yield
        finally:
            network.set_attn_implementation(NAME)


@dataclass(frozen=True)
class Runs:
    """Where runs of tokens lie among packed tokens; runs may share tokens."""

    index_RT: IndexArray
    """Packed index of each cell; those outside of ``start_R`` to ``length_R`` are not read."""
    length_R: IndexArray
    """Where each run ends in its row."""
    start_R: IndexArray | int = 0
    """Where it begins."""

    @staticmethod
    def of(length_R: IndexArray) -> Runs:
        """Runs of given lengths, one after the other without a gap."""
        length_R = np.asarray(length_R, np.int64)
        return Runs((np.cumsum(length_R) - length_R)[:, None] + np.arange(length_R.max()), length_R)

    @property
    def count_R(self) -> IndexArray:
        """Tokens of each run."""
        return self.length_R - self.start_R

    def of_members(self, members: IndexArray) -> tuple[IndexArray, NDArray[np.bool_], IndexArray]:
        """Of some runs: packed indices ``[R, width]`` (a run's last token again past its end), which cells are within the run,
        and places ``[R, width]`` in their rows."""
        start_R1 = np.broadcast_to(self.start_R, self.length_R.shape)[members, None]
        length_R1 = self.length_R[members, None]
        place = start_R1 + np.arange((length_R1 - start_R1).max())
        inside = np.minimum(place, length_R1 - 1)
        return self.index_RT[members[:, None], inside].astype(np.int64), place < length_R1, inside


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
    """Which keys a query may see, ``[R or 1, 1, Q or 1, K]``; None: all, or where causal those up to its own."""


class Segments:
    """How runs of packed queries attend to runs of packed keys. Everything outside attention works on packed tokens, so padding
    is paid for in attention alone, and there in two dimensions: runs of like size share a call.

    Args:
        queries, keys: the two sides of each run; a packed token is a query of one run.
        causal: a query sees the keys up to its own place in the row; else all keys.
    """

    def __init__(self, queries: Runs, keys: Runs, causal: bool, device: torch.device | str = "cpu") -> None:
        self.causal = causal
        waste = 0.15 if torch.device(device).type == "cpu" else 0.5
        self.buckets: list[Bucket] = []
        place_N = np.zeros(int(queries.count_R.sum()), np.int64)
        offset = 0
        for members in bucket_by_length(queries.count_R, keys.count_R, waste):
            query_RQ, asked_RQ, place_RQ = queries.of_members(members)
            key_RK, seen_RK, _ = keys.of_members(members)
            # Where causal, keys past a run's end come after all of its queries.
            allowed = np.arange(key_RK.shape[1]) <= place_RQ[:, :, None] if causal else seen_RK[:, None]
            hidden = place_RQ[:, 0].any() if causal else not allowed.all()
            place_N[query_RQ[asked_RQ]] = offset + np.flatnonzero(asked_RQ)
            offset += query_RQ.size
            self.buckets.append(
                Bucket(
                    queries=torch.from_numpy(query_RQ.reshape(-1)).to(device),
                    keys=torch.from_numpy(key_RK.reshape(-1)).to(device),
                    shape=(len(members), query_RQ.shape[1], key_RK.shape[1]),
                    allowed=torch.from_numpy(allowed[:, None]).to(device) if hidden else None,
                )
            )
        self.place_N = torch.from_numpy(place_N).to(device)

    def attend(
        self,
        query_NHD: Tensor,
        key_MKD: Tensor,
        value_MKD: Tensor,
        masks: Sequence[Tensor | None] | None = None,
        scale: float = 1.0,
    ) -> Tensor:
        """Attention output ``[N, H, D]`` of packed queries over packed keys and values ``[M, K, D]``.

        ``masks`` are added to the scores, one a bucket, in place of the buckets' own.
        """
        heads, width = query_NHD.shape[1:]
        query_NW, key_MW, value_MW = (state.flatten(1) for state in (query_NHD, key_MKD, value_MKD))
        parts = []
        for bucket, mask in zip(self.buckets, masks or [bucket.allowed for bucket in self.buckets], strict=True):
            rows, asked, seen = bucket.shape
            query = query_NW.index_select(0, bucket.queries).view(rows, asked, heads, width).transpose(1, 2)
            key = key_MW.index_select(0, bucket.keys).view(rows, seen, -1, width).transpose(1, 2)
            value = value_MW.index_select(0, bucket.keys).view(rows, seen, -1, width).transpose(1, 2)
            causal, grouped = self.causal and mask is None, heads != key.shape[1]
            out = functional.scaled_dot_product_attention(
                query, key, value, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=grouped
            )
            parts.append(out.transpose(1, 2).reshape(rows * asked, heads * width))
        return torch.cat(parts).index_select(0, self.place_N).view(-1, heads, width)


class PackedPlan:
    """Causal attention within the rows of a packed batch, without a cache (learner, scoring).

    A prefix that rows of a unit share is once among the packed tokens: every other layer computes it once, here each
    row reads it, and only the row that owns it asks for its outputs.

    Args:
        gather_BT: packed index of each cell; cells past a row's end repeat a valid index.
        scatter_N: the flat cell ``b · T + t`` that owns each packed token.
        length_B: tokens of each row.
    """

    def __init__(
        self, gather_BT: IndexArray, scatter_N: IndexArray, length_B: IndexArray, device: torch.device | str = "cpu"
    ) -> None:
        self.longest = int(length_B.max())
        cells = np.arange(gather_BT.size).reshape(gather_BT.shape)
        owned_BT = (scatter_N[gather_BT] == cells) & (np.arange(gather_BT.shape[1]) < length_B[:, None])
        asked = Runs(gather_BT, length_B, owned_BT.argmax(1))
        self.segments = Segments(asked, Runs(gather_BT, length_B), causal=True, device=device)

    def attend(self, layer: int, query_1HND: Tensor, key_1KND: Tensor, value_1KND: Tensor, scale: float) -> Tensor:
        states = (query_1HND[0].transpose(0, 1), key_1KND[0].transpose(0, 1), value_1KND[0].transpose(0, 1))
        return self.segments.attend(*states, scale=scale)[None]


def bucket_by_length(queries_B: IndexArray, keys_B: IndexArray, waste: float) -> list[IndexArray]:
    """Runs in buckets whose attention area is padded by at most the share ``waste``, largest first."""
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
