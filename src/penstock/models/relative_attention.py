"""Relative position biases, as T5 has them, for packed segments of any length.

A *segment* is a run of packed query tokens that attends to a run of packed key tokens
(:class:`~penstock.models.attention.Segments`): a source to itself, an answer to what comes before each of its tokens, or all
answers of a prompt to that prompt.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from penstock.models.attention import Segments


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

    def masks(self, segments: Segments, dtype: torch.dtype) -> list[Tensor]:
        """What is added to the scores of each bucket of segments, ``[R or 1, H, Q, K]``; the same for all layers that share a
        bias. Distances are those within a segment."""
        found = []
        for bucket in segments.buckets:
            _, asked, seen = bucket.shape
            positions = torch.arange(max(asked, seen), device=segments.device)
            distance = positions[:seen] - positions[:asked, None]
            added = self.of(distance).permute(2, 0, 1)[None].to(dtype)
            hidden = distance > 0 if segments.causal else None if bucket.allowed is None else ~bucket.allowed
            found.append(added if hidden is None else added.masked_fill(hidden, float("-inf")))
        return found
