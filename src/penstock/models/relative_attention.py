"""Attention with relative position biases, as T5 has it, over packed segments of any length.

A *segment* is a run of packed query tokens that attends to a run of packed key tokens: a source to itself, an answer to what
comes before each of its tokens, or all answers of a prompt to that prompt. Everything outside attention runs on packed
tokens, so padding is paid for in attention alone, and there segments of like size share a call.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from penstock.models.attention import Bucket, IndexArray, attend_in_buckets, bucket_by_length


def relative_bucket(distance: Tensor, buckets: int, longest: int, bidirectional: bool) -> Tensor:
    """The bucket of each distance ``key position - query position`` (Raffel et al. 2020, arXiv:1910.10683, section 2.1).

    Half of the buckets hold one distance each, the others grow in width logarithmically up to ``longest``, beyond which all
    distances share the last one. Where keys after the query are seen, they have a half of the buckets of their own; where
    they are not, their distance counts as 0.
    """
    if bidirectional:
        buckets //= 2
        offset = (distance > 0) * buckets
        apart = distance.abs()
    else:
        offset = torch.zeros_like(distance)
        apart = (-distance).clamp(min=0)
    exact = buckets // 2
    octave = torch.log(apart.clamp(min=1).float() / exact) / math.log(longest / exact)
    wide = (exact + (octave * (buckets - exact)).to(torch.int64)).clamp(max=buckets - 1)
    return offset + torch.where(apart < exact, apart, wide)


class RelativeBias(NamedTuple):
    """What a stack of layers adds to its attention scores, by distance and head."""

    table_XH: Tensor
    """One number for each bucket and head."""
    longest: int
    """Distances from here on share a bucket."""
    bidirectional: bool

    def of(self, distance: Tensor) -> Tensor:
        """The bias ``[..., H]`` of distances ``[...]``."""
        table = self.table_XH
        bucket = relative_bucket(distance, table.shape[0], self.longest, self.bidirectional)
        return table.index_select(0, bucket.flatten()).view(*distance.shape, table.shape[1])


class Spans(NamedTuple):
    """Where segments lie among packed tokens; they follow each other without a gap."""

    start_R: IndexArray
    length_R: IndexArray

    @staticmethod
    def of(length_R: IndexArray) -> Spans:
        """Segments of given lengths, one after the other."""
        length_R = np.asarray(length_R, np.int64)
        return Spans(np.cumsum(length_R) - length_R, length_R)


class Segments:
    """How packed queries attend to packed keys, segment by segment.

    Args:
        queries, keys: the two sides of each segment.
        causal: a query sees the keys up to its own place in the segment; else all keys.
    """

    def __init__(self, queries: Spans, keys: Spans, causal: bool, device: torch.device | str = "cpu") -> None:
        self.buckets: list[Bucket] = []
        place_N = np.zeros(int(queries.length_R.sum()), np.int64)
        offset = 0
        waste = 0.15 if torch.device(device).type == "cpu" else 0.5
        for members in bucket_by_length(queries.length_R, keys.length_R, waste):
            asked, seen = int(queries.length_R[members].max()), int(keys.length_R[members].max())
            query_RQ, real_RQ = _cells(queries, members, asked)
            key_RK, valid_RK = _cells(keys, members, seen)
            # Where causal, keys past a segment's end come after all of its queries.
            before = (np.arange(seen) <= np.arange(asked)[:, None])[None, None]
            allowed = before if causal else valid_RK[:, None, None]
            place_N[query_RQ[real_RQ]] = offset + np.flatnonzero(real_RQ)
            offset += query_RQ.size
            self.buckets.append(
                Bucket(
                    queries=torch.from_numpy(query_RQ.reshape(-1)).to(device),
                    keys=torch.from_numpy(key_RK.reshape(-1)).to(device),
                    shape=(len(members), asked, seen),
                    allowed=None if allowed.all() else torch.from_numpy(allowed).to(device),
                )
            )
        self.place_N = torch.from_numpy(place_N).to(device)

    def masks(self, bias: RelativeBias | None, dtype: torch.dtype) -> list[Tensor | None]:
        """What is added to the scores of each bucket, ``[R or 1, H or 1, Q or 1, K]``; the same for all layers that share
        a bias. Distances are those within a segment."""
        found: list[Tensor | None] = []
        for bucket in self.buckets:
            if bias is None:
                found.append(bucket.allowed)
                continue
            _, asked, seen = bucket.shape
            positions = torch.arange(max(asked, seen), device=self.place_N.device)
            added = bias.of(positions[:seen] - positions[:asked, None]).permute(2, 0, 1)[None].to(dtype)
            found.append(added if bucket.allowed is None else added.masked_fill(~bucket.allowed, float("-inf")))
        return found

    def attend(self, query_NHD: Tensor, key_MHD: Tensor, value_MHD: Tensor, masks: list[Tensor | None]) -> Tensor:
        """Attention output ``[N, H, D]`` without any scale, which T5 has folded into its weights."""
        return attend_in_buckets(self.buckets, self.place_N, (query_NHD, key_MHD, value_MHD), masks, scale=1.0)


def _cells(spans: Spans, members: IndexArray, width: int) -> tuple[IndexArray, NDArray[np.bool_]]:
    """Packed indices ``[R, width]`` of the members' tokens and which of them are within the segment."""
    place = np.arange(width)
    length_R1 = spans.length_R[members, None]
    return spans.start_R[members, None] + np.minimum(place, length_R1 - 1), place < length_R1
