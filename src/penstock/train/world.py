"""The ranks of a learner as torch sees them: who this process is, and the collectives that parts use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as distributed
from torch import Tensor

from penstock.core.errors import TrainingError

INTERFACE = "GLOO_SOCKET_IFNAME"
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
        told = torch.tensor(value, dtype=torch.float64, device=self.device)
        distributed.all_reduce(told, distributed.ReduceOp.MAX)
        return float(told)

    def total(self, value: Tensor) -> Tensor:
        """The sum of what the ranks give, in place."""
        distributed.all_reduce(value)
        return value

    def from_first(self, tensor: Tensor) -> Tensor:
        """Overwrite a tensor by that of rank 0; gives it."""
        distributed.broadcast(tensor, 0)
        return tensor

    def sum_in_buckets(self, tensors: list[Tensor]) -> None:
        """Sum tensors of one type over the ranks, in place, in buckets of :data:`BUCKET` bytes."""
        for bucket in buckets(tensors):
            flat = torch.cat([tensor.flatten() for tensor in bucket])
            distributed.all_reduce(flat)
            for tensor, part in zip(bucket, flat.split([tensor.numel() for tensor in bucket]), strict=True):
                tensor.copy_(part.view_as(tensor))


def buckets(tensors: list[Tensor]) -> Iterator[list[Tensor]]:
    """Tensors in order, in lists of at most :data:`BUCKET` bytes; a larger one by itself."""
    bucket: list[Tensor] = []
    for tensor in tensors:
        if bucket and sum(t.nbytes for t in bucket) + tensor.nbytes > BUCKET:
            yield bucket
            bucket = []
        bucket.append(tensor)
    if bucket:
        yield bucket


def join(rank: int, size: int, device: torch.device, store: str, seconds: float) -> World:
    """Meet the other ranks at a store in the file ``store``; every collective takes at most ``seconds``.

    Raises:
        TrainingError: this process is a rank of other ranks already.
    """
    if distributed.is_initialized():
        raise TrainingError("this process belongs to a torch.distributed group already; learners with ranks start their own")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    with _on_loopback():
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
def _on_loopback() -> Iterator[None]:
    """Sockets of gloo on this machine's loopback, unless the environment names an interface."""
    before = os.environ.get(INTERFACE)
    if before is None:
        os.environ[INTERFACE] = "lo" if os.path.isdir("/sys/class/net/lo") else "lo0"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(INTERFACE, None)
