"""The ranks of a learner as torch sees them: who this process is, and the collectives that parts use."""

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
from typing import TypeVar

import torch
import torch.distributed as distributed
from torch import Tensor

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
