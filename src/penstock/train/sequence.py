"""Sequence parallelism: the packed tokens of a micro-batch split over ranks, for contexts that one rank cannot hold.

Everything outside attention works token by token, so a rank computes its own tokens alone. Around attention the ranks exchange
tokens for heads: each attends over all tokens with its share of the heads (DeepSpeed-Ulysses, Jacobs et al. 2023,
arXiv:2309.14509). Attention itself is the plan of one device, so packed rows, positions and shared prefixes are too.

Rank r of S holds tokens r, r + S, r + 2S, … (as in striped attention, Brandon et al. 2023, arXiv:2311.09431), so that the ranks
share action tokens, and with them the logits, evenly. Tokens are padded to a multiple of S; nobody reads the padding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.nn import functional

from penstock.core.errors import ModelError
from penstock.models.attention import AttentionPlan, LayerAttention
from penstock.train.world import exchanged, gathered


@dataclass(frozen=True)
class Own:
    """What a rank computes of a micro-batch, and where that is in the whole."""

    tensors: Any
    """The batch as one forward pass reads it, over this rank's tokens."""
    action: Tensor
    """Places of its action tokens among all ``A``."""
    row: Tensor
    """Rows whose last token it holds, among all ``B``."""
    actions: int
    rows: int


@dataclass(frozen=True)
class Sequence:
    """The ranks that share the tokens of a micro-batch, as one of them sees it."""

    group: ProcessGroup
    rank: int
    size: int

    def split(self, tensors: Any) -> Own:
        """This rank's part of a laid out batch. Actions are split by the token that predicts them, after the shift by one."""
        action = (tensors.source_A % self.size == self.rank).nonzero()[:, 0]
        row = (tensors.last_B % self.size == self.rank).nonzero()[:, 0]
        own = SimpleNamespace(
            plan=SplitPlan(tensors.plan, len(tensors.tokens_N), self),
            needed_n=None,
            routes_NLK=None,
            tokens_N=self._own(tensors.tokens_N),
            position_N=self._own(tensors.position_N),
            source_A=tensors.source_A[action] // self.size,
            target_A=tensors.target_A[action],
            last_B=tensors.last_B[row] // self.size,
        )
        return Own(own, action, row, len(tensors.source_A), len(tensors.last_B))

    def _own(self, whole_N: Tensor) -> Tensor:
        return functional.pad(whole_N, (0, -len(whole_N) % self.size))[self.rank :: self.size]

    def join(self, outputs: Mapping[str, Tensor], own: Own, per_row: frozenset[str]) -> dict[str, Tensor]:
        """The outputs of all ranks, on each. Their gradient goes back to the rank that computed them."""
        found = {}
        for name, value in outputs.items():
            place, count = (own.row, own.rows) if name in per_row else (own.action, own.actions)
            found[name] = gathered(value, place, count, self.group)
        return found


class SplitPlan:
    """An attention plan over ``count`` tokens of which each rank of a sequence holds its own."""

    def __init__(self, inner: AttentionPlan, count: int, sequence: Sequence) -> None:
        self.inner, self.count, self.sequence = inner, count, sequence

    def attend(self, query_1HND: Tensor, key_1KND: Tensor, value_1KND: Tensor, how: LayerAttention) -> Tensor:
        ranks, group = self.sequence.size, self.sequence.group
        (heads, own, width), keys = query_1HND.shape[1:], key_1KND.shape[1]
        if value_1KND.shape[3] != width:
            raise ModelError(f"strategy.sequence_parallel={ranks}: keys and values differ in width; set it to 1")
        if how.sink_H is not None:
            how = how._replace(sink_H=how.sink_H.chunk(ranks)[self.sequence.rank])
        copies = copies_of_keys(heads, keys, ranks)
        each = [heads // ranks, keys * copies // ranks, keys * copies // ranks]  # of queries, keys and values, a rank
        whole = [query_1HND[0], *(x[0].repeat_interleave(copies, 0) for x in (key_1KND, value_1KND))]
        parts = [x.reshape(ranks, count, own, width) for x, count in zip(whole, each, strict=True)]
        given_RCnD = exchanged(torch.cat(parts, 1), group)
        tokens_1CND = given_RCnD.permute(1, 2, 0, 3).reshape(1, sum(each), own * ranks, width)[:, :, : self.count]
        query, key, value = tokens_1CND.split(each, 1)
        out_1NHD = self.inner.attend(query, key, value, how)
        padded_NHD = functional.pad(out_1NHD[0], (0, 0, 0, 0, 0, own * ranks - self.count))
        back_RnHD = exchanged(padded_NHD.view(own, ranks, each[0], width).transpose(0, 1), group)
        return back_RnHD.transpose(0, 1).reshape(1, own, heads, width)


def copies_of_keys(heads: int, keys: int, ranks: int) -> int:
    """How often each of ``keys`` key-value heads is repeated so that ranks have equal numbers of them.

    ``heads`` queries share them in groups; ranks divide ``heads``. Where ranks divide ``keys`` nothing is repeated.
    """
    return next(copies for copies in range(1, heads // keys + 1) if heads // keys % copies == 0 and keys * copies % ranks == 0)
