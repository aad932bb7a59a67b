"""The ranks of a learner as torch sees them: who this process is, and the collectives that parts use.

All ranks of a copy hold the same loss. What each adds to a parameter's gradient is its own share, unless it holds the whole.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as distributed
from torch import Tensor
from torch.distributed import ProcessGroup

from penstock.core.errors import TrainingError
from penstock.train.rendezvous import host_of_this_node

INTERFACE = "GLOO_SOCKET_IFNAME"
Item = TypeVar("Item")
ASK_ADDRESS = 0x8915
"""Linux's number of the request for an interface's address (SIOCGIFADDR)."""
BUCKET = 1 << 25
"""Bytes of gradients that are summed in one call."""


@dataclass(frozen=True)
class World:
    """One rank among ``size``, and the device it computes on."""

    rank: int
    size: int
    device: torch.device

    def highest(self, value: float) -> float:
        """The largest of what the ranks give."""
        value_1 = torch.tensor(value, dtype=torch.float64, device=self.device)
        distributed.all_reduce(value_1, distributed.ReduceOp.MAX)
        return float(value_1)

    def total(self, value: Tensor) -> Tensor:
        """The sum of what the ranks give, in place."""
        distributed.all_reduce(value)
        return value

    def mean_square(self, values: Tensor) -> float:
        """The mean square of the numbers that all ranks have, each its own."""
        squares = values.to(self.device).square().sum(dtype=torch.float64)
        square, count = self.total(torch.stack([squares, torch.full_like(squares, values.numel())])).tolist()
        return float(square / count)

    def from_first(self, tensor: Tensor) -> Tensor:
        """Overwrite a tensor by that of rank 0; gives it."""
        distributed.broadcast(tensor, 0)
        return tensor


def buckets(items: Iterable[Item], size: Callable[[Item], int]) -> Iterator[list[Item]]:
    """Items in order, in lists of at most :data:`BUCKET` bytes as ``size`` tells of each; a larger one by itself."""
    bucket: list[Item] = []
    held = 0
    for item in items:
        if bucket and held + size(item) > BUCKET:
            yield bucket
            bucket, held = [], 0
        bucket.append(item)
        held += size(item)
    if bucket:
        yield bucket


def join(rank: int, size: int, device: torch.device, store: str, seconds: float, across: bool = False) -> World:
    """Meet the other ranks at a store in the file ``store``; every collective takes at most ``seconds``.

    ``across`` nodes they speak over the interface of this node's address (``PENSTOCK_HOST``), else over loopback.

    Raises:
        TrainingError: this process is a rank of other ranks already, or no interface has the node's address.
    """
    if distributed.is_initialized():
        raise TrainingError("this process belongs to a torch.distributed group already; learners with ranks start their own")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    with _on_interface(_interface_of(host_of_this_node()) if across else ""):
        distributed.init_process_group(
            backend,
            store=distributed.FileStore(store, size),
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=seconds),
        )
    return World(rank, size, device)


def leave() -> None:
    """End this process's membership."""
    if distributed.is_initialized():
        distributed.destroy_process_group()


@contextmanager
def _on_interface(name: str) -> Iterator[None]:
    """Sockets of gloo on an interface, or on this machine's loopback, unless the environment names another."""
    before = os.environ.get(INTERFACE)
    if before is None:
        os.environ[INTERFACE] = name or ("lo" if os.path.isdir("/sys/class/net/lo") else "lo0")
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(INTERFACE, None)


def _interface_of(address: str) -> str:
    """The name of the network interface that has an address; empty for loopback."""
    if address.startswith("127."):
        return ""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # it has no address
                found = fcntl.ioctl(asking.fileno(), ASK_ADDRESS, struct.pack("256s", name.encode()[:15]))
                if socket.inet_ntoa(found[20:24]) == address:
                    return name
    raise TrainingError(f"no network interface of this node has its address {address}; name one in {INTERFACE}")


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
