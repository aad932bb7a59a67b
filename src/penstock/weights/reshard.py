"""Which rank sends which slice of which tensor to whom, when weights go from the ranks that train to the ranks that generate.

A :class:`Layout` has ``data`` copies of the model, each cut over ``tensor`` ranks along one dimension of every matrix. Training
counts ranks copy by copy. To go to another layout on the same ranks with the fewest bytes, the generation shards are handed
out in the order of the training shards. Where generation cuts more coarsely and the cuts divide, a rank's training shard is a
part of its generation shard, nothing is held twice, and a rank receives only from the ranks of its own copy whose shards make
up the rest of its new one: the grouping of HybridFlow's 3D-HybridEngine (micro data-parallel groups, zero redundancy). Where it
cuts more finely, nothing moves.

Bytes are counted by :meth:`Plan.volumes`; :func:`gathered` counts what engines move that gather more than they keep.

SOURCE: arXiv:2409.19256, section 5 and table 2.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.distributed as distributed
from torch import Tensor

from penstock.core.errors import WeightError

Interval = tuple[int, int]
"""From … up to, along the dimension that is cut."""


@dataclass(frozen=True)
class Layout:
    """``data`` copies of a model, each over ``tensor`` ranks."""

    data: int
    tensor: int

    def __post_init__(self) -> None:
        if self.data < 1 or self.tensor < 1:
            raise WeightError(f"a layout of {self.data} × {self.tensor} ranks is none; both are at least 1")

    @property
    def ranks(self) -> int:
        return self.data * self.tensor

    def shard(self, rank: int) -> int:
        """Which shard a rank trains; the ranks of a copy follow each other."""
        return rank % self.tensor

    def rank(self, copy: int, shard: int) -> int:
        return copy * self.tensor + shard


@dataclass(frozen=True)
class Part:
    """A tensor of the whole model. It is cut along ``dim``; None: every rank has all of it."""

    name: str
    shape: tuple[int, ...]
    dim: int | None
    itemsize: int = 4

    @property
    def length(self) -> int:
        """Of the dimension that is cut; 1 where none is."""
        return 1 if self.dim is None else self.shape[self.dim]

    def interval(self, shard: int, shards: int) -> Interval:
        """What of it a shard has. Where the length does not divide, cuts are rounded down: finer ones contain coarser ones."""
        if self.dim is None:
            return 0, 1
        return self.length * shard // shards, self.length * (shard + 1) // shards

    def bytes(self, interval: Interval) -> int:
        """Of a slice."""
        return math.prod(self.shape) // max(1, self.length) * self.itemsize * max(0, interval[1] - interval[0])


class Move(NamedTuple):
    """A slice on its way: ``start`` to ``stop`` along the dimension in which the whole tensor is cut."""

    part: Part
    source: int
    target: int
    start: int
    stop: int


class Volumes(NamedTuple):
    """Bytes at a rank: received, held at most while it happens, and kept for training that generation has no use for."""

    received: int
    peak: int
    redundant: int


@dataclass(frozen=True)
class Plan:
    """How weights get from one layout to another. ``shards`` gives the generation shard of each target rank."""

    parts: tuple[Part, ...]
    before: Layout
    after: Layout
    shards: Mapping[int, int]
    moves: tuple[Move, ...]

    def needed(self, part: Part, rank: int) -> Interval:
        """What a rank generates with; nothing where it does not generate."""
        return part.interval(self.shards[rank], self.after.tensor) if rank in self.shards else (0, 0)

    def held(self, part: Part, rank: int) -> Interval:
        """What a rank trains; nothing where it does not train."""
        return part.interval(self.before.shard(rank), self.before.tensor) if rank < self.before.ranks else (0, 0)

    def volumes(self, rank: int) -> Volumes:
        """What the plan costs a rank. The training shard is used in place where it is part of the generation shard."""
        received = sum(move.part.bytes((move.start, move.stop)) for move in self.moves if move.target == rank)
        held = sum(part.bytes(self.held(part, rank)) for part in self.parts)
        shared = sum(part.bytes(overlap(self.held(part, rank), self.needed(part, rank))) for part in self.parts)
        return Volumes(received, held + received, held - shared)

    @property
    def bytes(self) -> int:
        """Received by all ranks together."""
        return sum(move.part.bytes((move.start, move.stop)) for move in self.moves)


def plan(parts: Sequence[Part], before: Layout, after: Layout, *, apart: bool = False) -> Plan:
    """The plan with the fewest bytes. ``apart``: the generation ranks are others, numbered after those that train.

    Raises:
        WeightError: the layouts have different numbers of ranks, and are not ``apart``.
    """
    if not apart and before.ranks != after.ranks:
        raise WeightError(
            f"{before.data} × {before.tensor} ranks cannot turn into {after.data} × {after.tensor}: the numbers differ; give "
            "generation ranks of its own (apart)"
        )
    shards = {before.ranks + rank: after.shard(rank) for rank in range(after.ranks)} if apart else handed_out(before, after)
    made = Plan(tuple(parts), before, after, shards, ())
    moves = [move for target in shards for part in parts for move in _moves(made, part, target)]
    return Plan(tuple(parts), before, after, shards, tuple(moves))


def handed_out(before: Layout, after: Layout) -> dict[int, int]:
    """The generation shard of each rank: shards in order go to the ranks in the order of what they train."""
    in_order = sorted(range(before.ranks), key=lambda rank: (before.shard(rank), rank))
    return {rank: place // after.data for place, rank in enumerate(in_order)}


def _moves(made: Plan, part: Part, target: int) -> Iterator[Move]:
    """What a rank lacks of a tensor, piece by piece from the ranks of one copy: its own, or by turns where it trains none."""
    held, before = made.held(part, target), made.before
    copy = target // before.tensor if target < before.ranks else target % before.data
    for start, stop in without(made.needed(part, target), held):
        if part.dim is None:  # every rank of the copy has it; they take turns
            yield Move(part, before.rank(copy, target % before.tensor), target, start, stop)
            continue
        for shard in range(before.tensor):
            piece = overlap((start, stop), part.interval(shard, before.tensor))
            if piece[0] < piece[1]:
                yield Move(part, before.rank(copy, shard), target, *piece)


def overlap(one: Interval, other: Interval) -> Interval:
    """What two intervals share; empty (start = stop) where that is nothing."""
    start, stop = max(one[0], other[0]), min(one[1], other[1])
    return (start, stop) if start < stop else (0, 0)


def without(one: Interval, other: Interval) -> list[Interval]:
    """What is left of an interval where another is taken out."""
    shared = overlap(one, other)
    if shared[0] == shared[1]:
        return [one] if one[0] < one[1] else []
    return [piece for piece in ((one[0], shared[0]), (shared[1], one[1])) if piece[0] < piece[1]]


def gathered(parts: Iterable[Part], before: Layout, after: Layout, over: Literal["all ranks", "copy"]) -> list[Volumes]:
    """What each rank pays if it first gathers the whole model and then keeps its shard, which go to ranks in their order.

    ``all ranks``: training shards over all of them (ZeRO-3, DeepSpeed-Chat). ``copy``: over the ranks of a copy.
    """
    found = []
    whole = list(parts)
    total = sum(part.bytes((0, part.length)) for part in whole)
    shards = before.ranks if over == "all ranks" else before.tensor
    for rank in range(before.ranks):
        own = [(part, part.interval(rank % shards, shards), part.interval(rank % after.tensor, after.tensor)) for part in whole]
        held = sum(part.bytes(trained) for part, trained, _ in own)
        shared = sum(part.bytes(overlap(trained, generated)) for part, trained, generated in own)
        found.append(Volumes(total - held, total, held - shared))
    return found


@torch.no_grad()
def carry_out(
    made: Plan, rank: int, shards: Mapping[str, Tensor], group: distributed.ProcessGroup | None = None
) -> dict[str, Tensor]:
    """A rank's part of a plan: its training shards by name in, its generation shards out. All ranks call it together.

    One tensor after the other, so that slices on their way take the memory of one. A rank that only generates passes empty
    tensors of the right type. Deadlines are those of the process group.

    Raises:
        WeightError: a shard is missing or of another shape than the plan has it.
        RuntimeError: a rank is gone, or the deadline passed.
    """
    found: dict[str, Tensor] = {}
    for part in made.parts:
        held, needed = made.held(part, rank), made.needed(part, rank)
        shard = _checked(part, shards, held)
        new = shard.new_empty(_shape(part, needed)) if rank in made.shards else None
        shared = overlap(held, needed)
        if new is not None and shared[0] < shared[1]:
            _slice(part, new, needed, shared).copy_(_slice(part, shard, held, shared))
        arrivals = []
        waiting = []
        for move in made.moves:
            if move.part != part or rank not in (move.source, move.target):
                continue
            span = (move.start, move.stop)
            if rank == move.source:
                waiting.append(distributed.isend(_slice(part, shard, held, span).contiguous(), move.target, group))
            else:
                buffer = shard.new_empty(_shape(part, span))
                waiting.append(distributed.irecv(buffer, move.source, group))
                arrivals.append((span, buffer))
        for work in waiting:
            if work is not None:
                work.wait()
        for span, buffer in arrivals:
            assert new is not None
            _slice(part, new, needed, span).copy_(buffer)
        if new is not None:
            found[part.name] = new
    return found


def _checked(part: Part, shards: Mapping[str, Tensor], held: Interval) -> Tensor:
    shard = shards.get(part.name)
    expected = _shape(part, held)
    if shard is None or (held[0] < held[1] and tuple(shard.shape) != expected):
        shape = "missing" if shard is None else tuple(shard.shape)
        raise WeightError(f'the training shard of "{part.name}" is {shape}; the plan has {expected}')
    return shard


def _shape(part: Part, interval: Interval) -> tuple[int, ...]:
    if part.dim is None:
        return part.shape
    return (*part.shape[: part.dim], interval[1] - interval[0], *part.shape[part.dim + 1 :])


def _slice(part: Part, shard: Tensor, has: Interval, wanted: Interval) -> Tensor:
    """A view of what is wanted, in a shard that has an interval of the whole."""
    return shard if part.dim is None else shard.narrow(part.dim, wanted[0] - has[0], wanted[1] - wanted[0])
