"""Collectives that a gradient goes through, for what the ranks of one copy of a model compute together.

All ranks of a copy hold the same loss. What each adds to a parameter's gradient is its own share, unless it holds the whole.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as distributed
from torch import Tensor
from torch.distributed import ProcessGroup


def exchanged(sent_R: Tensor, group: ProcessGroup) -> Tensor:
    """Send part ``sent_R[r]`` to rank r of the group; gives ``[R, …]``, one part from each. It is its own inverse."""
    found: Tensor = _Exchanged.apply(sent_R, group)
    return found


def gathered(own: Tensor, place: Tensor, count: int, group: ProcessGroup) -> Tensor:
    """``[count]`` values on all ranks, of which this rank gives those at ``place``; each place belongs to one rank."""
    found: Tensor = _Gathered.apply(own, place, count, group)
    return found


def summed(share: Tensor, group: ProcessGroup) -> Tensor:
    """The sum of what the ranks give, on all of them."""
    found: Tensor = _Summed.apply(share, group)
    return found


def common(whole: Tensor, group: ProcessGroup) -> Tensor:
    """A tensor that all ranks hold, on its way into what each computes a share of: its gradient is the sum of theirs."""
    found: Tensor = _Common.apply(whole, group)
    return found


class _Exchanged(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, sent_R: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return _exchange(sent_R, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _exchange(gradients[0], ctx.group), None


def _exchange(sent_R: Tensor, group: ProcessGroup) -> Tensor:
    sent = sent_R.contiguous()
    found = torch.empty_like(sent)
    distributed.all_to_all_single(found, sent, group=group)
    return found


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor, place: Tensor, count: int, group: ProcessGroup) -> Tensor:
        ctx.save_for_backward(place)
        whole = own.new_zeros(count)
        whole[place] = own
        distributed.all_reduce(whole, group=group)
        return whole

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (place,) = ctx.saved_tensors
        return gradients[0][place], None, None, None


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, share: Tensor, group: ProcessGroup) -> Tensor:
        total = share.clone()
        distributed.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


class _Common(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, whole: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return whole.view_as(whole)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        total = gradients[0].clone()
        distributed.all_reduce(total, group=ctx.group)
        return total, None
