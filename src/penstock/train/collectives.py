"""Collectives that a gradient goes through, for what the ranks of one copy of a model compute together.

All ranks of a copy hold the same loss. What each adds to a parameter's gradient is its own share, unless it holds the whole.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as distributed
from torch import Tensor
from torch.distributed import ProcessGroup


def exchanged(sent_R: Tensor, group: ProcessGroup) -> Tensor:
    """Send part ``sent_R[r]`` to rank r of the group; gives ``[R, …]``, one part from each. It is its own inverse."""
    return _through(sent_R, partial(_exchange, group=group), partial(_exchange, group=group))


def summed(share: Tensor, group: ProcessGroup) -> Tensor:
    """The sum of what the ranks give, on all of them."""
    return _through(share, partial(_total, group=group), _same)


def common(whole: Tensor, group: ProcessGroup) -> Tensor:
    """A tensor that all ranks hold, on its way into what each computes a share of: its gradient is the sum of theirs."""
    return _through(whole, _same, partial(_total, group=group))


def gathered(own: Tensor, place: Tensor, count: int, group: ProcessGroup) -> Tensor:
    """``[count]`` values on all ranks, of which this rank gives those at ``place``; each place belongs to one rank."""
    return summed(own.new_zeros(count).index_copy(0, place, own), group)


def _exchange(sent_R: Tensor, group: ProcessGroup) -> Tensor:
    sent = sent_R.contiguous()
    found = torch.empty_like(sent)
    distributed.all_to_all_single(found, sent, group=group)
    return found


def _total(share: Tensor, group: ProcessGroup) -> Tensor:
    total = share.clone()
    distributed.all_reduce(total, group=group)
    return total


def _same(tensor: Tensor) -> Tensor:
    return tensor.view_as(tensor)


Step = Callable[[Tensor], Tensor]


def _through(tensor: Tensor, there: Step, back: Step) -> Tensor:
    """``there`` of a tensor, whose gradient goes through ``back``."""
    found: Tensor = _Through.apply(tensor, there, back)
    return found


class _Through(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, there: Step, back: Step) -> Tensor:
        ctx.back = back
        return there(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return ctx.back(gradients[0]), None, None
