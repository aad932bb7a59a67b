"""One attention function for every decoder architecture of transformers, driven by a plan.

transformers looks its attention up in a registry by name. We register one function, ``penstock``; it gives queries, keys and
values (after rotary embedding, before any cache) to the *plan* that the caller passed to the model's forward. The learner's
plan attends within packed rows; the generator's plans read and write its pooled cache. So model classes are reused as they
are, and who owns the memory is decided outside them.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface
from transformers.utils import logging as transformers_logging

from penstock.core.errors import ModelError
from penstock.models.uploads import uploaded
from penstock.models.varlen import PackedRuns, kernel_of

NAME = "penstock"

IndexArray = NDArray[np.integer[Any]]

_REFUSED_UNLESS_NONE = ("head_mask", "position_bias", "indices", "block_indices")
"""What a layer may give its attention besides, and ours does not compute: biases, and choices of the keys that are seen."""


class LayerAttention(NamedTuple):
    """What one layer makes of the products of its queries and keys."""

    scale: float = 1.0
    window: int | None = None
    """How many keys a query sees, its own and those right before it; None: all."""
    cap: float | None = None
    """Scores s become cap · tanh(s / cap) (Gemma 2, arXiv:2408.00118)."""
    sink_H: Tensor | None = None
    """A score of each head that takes its share of the softmax and has no value (gpt-oss, arXiv:2508.10925)."""

    @property
    def fused(self) -> bool:
        """Whether torch's own attention computes it."""
        return self.cap is None and self.sink_H is None

    def weights(self, product: Tensor, mask: Tensor) -> Tensor:
        """Attention weights of unscaled products ``[R, K, …, T]`` in float32, which are overwritten; K divides the heads, and
        the heads of a key head come first on the third axis. ``mask`` is added to the scores."""
        scores = product.mul_(self.scale)
        if self.cap is not None:
            scores = self.cap * torch.tanh(scores / self.cap)
        scores = scores.add_(mask)
        if self.sink_H is None:
            return scores.softmax(-1)
        sink = self.sink_H.to(scores).view(scores.shape[1], -1, 1).expand(*scores.shape[:-1], 1)
        return torch.cat([scores, sink], -1).softmax(-1)[..., :-1]


UNSCALED = LayerAttention()
"""Attention whose scores are the products themselves, as in T5."""


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """transformers reports every new head and registry name as a problem; our own errors say what matters."""
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

    def attend(self, query_1HND: Tensor, key_1KND: Tensor, value_1KNE: Tensor, how: LayerAttention) -> Tensor:
        """Attention output ``[1, N, H, E]`` (or ``[B, 1, H, E]`` for a decode step of ``[B, H, 1, D]`` queries).

        Layers are known by the order in which they call: a pass makes the same calls every time, and a layer may call
        more than once.
        """
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
    if attention_mask is not None:
        raise ModelError(f"{type(module).__name__} makes an attention mask of its own, which Penstock's attention does not use")
    for name in _REFUSED_UNLESS_NONE:
        if rest.get(name) is not None:
            raise ModelError(f"{type(module).__name__} asks for {name}, which Penstock's attention does not compute")
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    return plan.attend(
        query, key, value, LayerAttention(scale, rest.get("sliding_window"), rest.get("softcap"), rest.get("s_aux"))
    ), None


def register() -> None:
    """Make ``penstock`` known to transformers (idempotent)."""
    AttentionInterface.register(NAME, _attention)


def attend_by_plan(network: Any) -> None:
    """Let a network's tokens attend as a plan says; the tower of a model of media attends by transformers' own function."""
    own = network.config
    more = not own.is_encoder_decoder and own.get_text_config() is not own
    network.set_attn_implementation(dict.fromkeys(own.sub_configs, "sdpa") | {"text_config": NAME} if more else NAME)


@contextmanager
def eager_attention(network: Any) -> Iterator[None]:
    """Within it a network attends by transformers' own functions; our name means nothing to who reads its configuration."""
    with quiet_transformers():
        network.set_attn_implementation("eager")
        try:
            yield
        finally:
            attend_by_plan(network)


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

    def packed(self) -> IndexArray:
        """Packed indices of the runs' tokens, run after run."""
        place = np.arange(self.index_RT.shape[1])
        start_R = np.broadcast_to(self.start_R, self.length_R.shape)
        return self.index_RT[(place >= start_R[:, None]) & (place < self.length_R[:, None])].astype(np.int64)

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
    """Which keys a query may see, ``[R, 1, Q or 1, K]``; None: all, or where causal those up to its own."""


class Segments:
    """How runs of packed queries attend to runs of packed keys. Everything outside attention works on packed tokens, so padding
    is paid for in attention alone, and there in two dimensions: runs of like size share a call.

    Args:
        queries, keys: the two sides of each run; a packed token is a query of one run.
        causal: a query sees the keys up to its own place in the row; else all keys.
        window: where causal, how many keys it sees at most, its own included.
        last_RT: where causal, the last place that each place of a row sees; None: itself.
    """

    def __init__(
        self, queries: Runs, keys: Runs, causal: bool, device: torch.device | str = "cpu", window: int | None = None,
        last_RT: IndexArray | None = None,
    ) -> None:  # fmt: skip
        self.queries, self.keys, self.causal, self.device, self.window = queries, keys, causal, torch.device(device), window
        self.last_RT = last_RT

    @cached_property
    def packed(self) -> PackedRuns:
        """The runs one after the other, for kernels that take them so."""
        query_N, key_M = (runs.packed() for runs in (self.queries, self.keys))
        counts = [runs.count_R for runs in (self.queries, self.keys)]
        starts = [np.concatenate([[0], np.cumsum(count_R)]).astype(np.int32) for count_R in counts]
        sent = [uploaded(places, self.device) for places in (query_N, key_M, *starts, np.argsort(query_N))]
        longest = int(counts[0].max()), int(counts[1].max())
        return PackedRuns(sent[0], sent[1], (sent[2], sent[3]), longest, sent[4])

    @cached_property
    def buckets(self) -> list[Bucket]:
        """The runs padded, for torch's own attention."""
        return self._buckets[0]

    @cached_property
    def _buckets(self) -> tuple[list[Bucket], Tensor]:
        queries, keys, causal, device, window = self.queries, self.keys, self.causal, self.device, self.window
        waste = 0.15 if device.type == "cpu" else 0.5
        buckets: list[Bucket] = []
        place_N = np.zeros(int(queries.count_R.sum()), np.int64)
        offset = 0
        for members in bucket_by_length(queries.count_R, keys.count_R, waste):
            query_RQ, asked_RQ, place_RQ = queries.of_members(members)
            key_RK, seen_RK, _ = keys.of_members(members)
            allowed, hidden = seen_RK[:, None], not seen_RK.all()
            if causal:
                first_R1 = np.broadcast_to(keys.start_R, keys.length_R.shape)[members, None]
                reaches = place_RQ.max() >= (window or keys.length_R.max())
                hidden = bool(place_RQ[:, 0].any() or first_R1.any() or reaches or self.last_RT is not None)
            if causal and hidden:  # keys past a run's end come after all of its queries
                place_RQ1, place_R1K = place_RQ[:, :, None], (first_R1 + np.arange(key_RK.shape[1]))[:, None]
                last_RQ = place_RQ if self.last_RT is None else self.last_RT[members[:, None], place_RQ]
                allowed = place_R1K <= last_RQ[:, :, None]
                allowed &= place_R1K > place_RQ1 - (window or place_RQ.max() + 1)
            place_N[query_RQ[asked_RQ]] = offset + np.flatnonzero(asked_RQ)
            offset += query_RQ.size
            buckets.append(
                Bucket(
                    queries=uploaded(query_RQ.reshape(-1), device),
                    keys=uploaded(key_RK.reshape(-1), device),
                    shape=(len(members), query_RQ.shape[1], key_RK.shape[1]),
                    allowed=uploaded(allowed[:, None], device) if hidden else None,
                )
            )
        return buckets, uploaded(place_N, device)

    def attend(
        self,
        query_NHD: Tensor,
        key_MKD: Tensor,
        value_MKE: Tensor,
        masks: Sequence[Tensor | None] | None = None,
        how: LayerAttention = UNSCALED,
    ) -> Tensor:
        """Attention output ``[N, H, E]`` of packed queries over packed keys and values ``[M, K, D or E]``.

        ``masks`` are added to the scores, one a bucket, in place of the buckets' own.
        """
        shape = (*query_NHD.shape[1:], key_MKD.shape[1])
        kernel = kernel_of(query_NHD.device, query_NHD.dtype, shape[0], shape[2], shape[1])
        if kernel and how.fused and masks is None and self.last_RT is None and value_MKE.shape[2] == shape[1]:
            runs = self.packed
            states = (query_NHD[runs.query_N], key_MKD[runs.key_M], value_MKE[runs.key_M])
            left = -1 if self.window is None else self.window - 1
            return kernel(*states, runs, how.scale, (left, 0 if self.causal else -1))[runs.place_N]
        query_NW, key_MW, value_MW = (state.flatten(1) for state in (query_NHD, key_MKD, value_MKE))
        parts = []
        for bucket, mask in zip(self.buckets, masks or [bucket.allowed for bucket in self.buckets], strict=True):
            rows, asked, seen = bucket.shape
            query = query_NW.index_select(0, bucket.queries).view(rows, asked, *query_NHD.shape[1:]).transpose(1, 2)
            key = key_MW.index_select(0, bucket.keys).view(rows, seen, *key_MKD.shape[1:]).transpose(1, 2)
            value = value_MW.index_select(0, bucket.keys).view(rows, seen, *value_MKE.shape[1:]).transpose(1, 2)
            out = dot_product(query, key, value, how, mask, self.causal and mask is None)
            parts.append(out.transpose(1, 2).reshape(rows * asked, -1))
        return torch.cat(parts).index_select(0, self._buckets[1]).view(-1, query_NHD.shape[1], value_MKE.shape[2])


def dot_product(
    query_RHQD: Tensor, key_RKTD: Tensor, value_RKTE: Tensor, how: LayerAttention, mask: Tensor | None, causal: bool = False
) -> Tensor:
    """Attention output ``[R, H, Q, E]``; H is a multiple of K. ``mask`` says what is seen, or is added to the scores.

    Scores are materialised where torch's own attention does not compute them: soft caps and sinks.
    """
    rows, heads, asked, _ = query_RHQD.shape
    if how.fused:
        if mask is not None and query_RHQD.is_cuda:
            key_RKTD, value_RKTE = same_heads(query_RHQD, key_RKTD, value_RKTE)
        return functional.scaled_dot_product_attention(
            query_RHQD, key_RKTD, value_RKTE, mask, is_causal=causal, scale=how.scale, enable_gqa=heads != key_RKTD.shape[1]
        )
    seen = key_RKTD.shape[2]
    if mask is None:
        mask = query_RHQD.new_ones(asked, seen, dtype=torch.bool)
        mask = mask.tril() if causal else mask
    if mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, device=mask.device).masked_fill_(~mask, float("-inf"))
    query = query_RHQD.reshape(rows, key_RKTD.shape[1], -1, query_RHQD.shape[3])  # the queries of a key head next to each other
    product = torch.matmul(query, key_RKTD.transpose(-1, -2)).view(rows, heads, asked, seen)
    product = product if product.dtype == torch.float64 else product.float()
    weight = how.weights(product, mask).to(value_RKTE.dtype)
    return torch.matmul(weight.reshape(*query.shape[:3], seen), value_RKTE).view(rows, heads, asked, -1)


def same_heads(query_RHQD: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
    """Keys and values ``[R, K, T, D]`` once for each head of the queries: the kernel of CUDA that takes a mask and materialises
    no scores knows no groups."""
    return tuple(state.repeat_interleave(query_RHQD.shape[1] // state.shape[1], 1) for state in states)


class PackedPlan:
    """Causal attention within the rows of a packed batch, without a cache (learner, scoring).

    A prefix that rows of a unit share is once among the packed tokens: every other layer computes it once, here each
    row reads it, and only the row that owns it asks for its outputs.

    Args:
        gather_BT: packed index of each cell; cells past a row's end repeat a valid index.
        scatter_N: the flat cell ``b · T + t`` that owns each packed token.
        length_B: tokens of each row.
        last_BT: as of :class:`Segments`.
    """

    def __init__(
        self, gather_BT: IndexArray, scatter_N: IndexArray, length_B: IndexArray, device: torch.device | str = "cpu",
        last_BT: IndexArray | None = None,
    ) -> None:  # fmt: skip
        cells = np.arange(gather_BT.size).reshape(gather_BT.shape)
        owned_BT = (scatter_N[gather_BT] == cells) & (np.arange(gather_BT.shape[1]) < length_B[:, None])
        self._rows, self._device = Runs(gather_BT, length_B, owned_BT.argmax(1)), device
        self._seen, self._last_BT = Runs(gather_BT, length_B), last_BT
        self._whole = Segments(self._rows, self._seen, True, device, None, last_BT)
        self._banded: dict[int, Segments] = {}

    def segments(self, window: int | None = None) -> Segments:
        """The rows, where a window is shorter than they are in bands: a run of queries meets no key that none of it sees."""
        if window is None or window >= self._rows.length_R.max():
            return self._whole
        if window not in self._banded:
            runs = bands(self._rows, window) if self._last_BT is None else (self._rows, self._seen)
            self._banded[window] = Segments(*runs, True, self._device, window, self._last_BT)
        return self._banded[window]

    def attend(self, query_1HND: Tensor, key_1KND: Tensor, value_1KNE: Tensor, how: LayerAttention) -> Tensor:
        states = (query_1HND[0].transpose(0, 1), key_1KND[0].transpose(0, 1), value_1KNE[0].transpose(0, 1))
        return self.segments(how.window).attend(*states, how=how)[None]


def bands(rows: Runs, window: int) -> tuple[Runs, Runs]:
    """Rows cut into runs of at most ``max(window, 128)`` queries, and the keys that each of them can see."""
    width = max(window, 128)
    parts = [
        (row, start, min(start + width, length))
        for row, (first, length) in enumerate(
            zip(np.broadcast_to(rows.start_R, rows.length_R.shape), rows.length_R, strict=True)
        )
        for start in range(first, length, width)
    ]
    row_R, start_R, end_R = np.array(parts).T
    index_RT = rows.index_RT[row_R]
    return Runs(index_RT, end_R, start_R), Runs(index_RT, end_R, np.maximum(start_R - window + 1, 0))


def bucket_by_length(queries_B: IndexArray, keys_B: IndexArray, waste: float) -> list[IndexArray]:
    """Runs in buckets whose attention area is padded by at most the share ``waste``, largest first."""
    order = np.lexsort((-keys_B, -queries_B))
    borders: list[int] = []
    area = padded = most_queries = most_keys = 0
    for place, (queries, keys) in enumerate(zip(queries_B[order].tolist(), keys_B[order].tolist(), strict=True)):
        area, most_keys = area + queries * keys, max(most_keys, keys)
        padded = (place + 1 - borders[-1]) * most_queries * most_keys if borders else 0
        if not borders or area < (1 - waste) * padded:
            borders.append(place)
            area, most_queries, most_keys = queries * keys, queries, keys
    return np.split(order, borders[1:])


def single_row_plan(length: int, device: torch.device | str = "cpu") -> PackedPlan:
    """The plan of one unpacked sequence."""
    index = np.arange(length)
    return PackedPlan(index[None], index, np.asarray([length]), device)
