"""Rank 0 of a process group whose other members are the processes of an inference server, which join by torch's rendezvous.

Such a server is given an address, a port, a name and how many take part; its processes meet at a TCP store there, under keys
that torch derives from the name and the kind of device, and then every tensor is broadcast from rank 0. Store and connections
are on the loopback interface, or on that of the address in ``PENSTOCK_HOST``. torch protects the store by nothing: any process
that reaches the port while the group is alive can disturb it, or is sent the weights if it comes before the server.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as distributed
from torch import Tensor

from penstock.core.errors import GenerationError, blame
from penstock.weights.process_group import broadcast, join_gloo


class EngineGroup:
    """A group under a name of its own: a server that has met the same trainer before knows groups of other names."""

    def __init__(self, device: torch.device, seconds: float) -> None:
        """Tensors are broadcast by NCCL from a CUDA ``device``, otherwise by gloo. No wait is longer than ``seconds``.

        Raises:
            GenerationError: the port cannot be opened.
        """
        self.device, self.wait = device, timedelta(seconds=seconds)
        self.backend = "nccl" if device.type == "cuda" else "gloo"
        self.name = f"penstock-{secrets.token_hex(8)}"
        self.address = os.environ.get("PENSTOCK_HOST", "127.0.0.1")
        with blame(GenerationError, f"opening a port on {self.address} for a process group"):
            listening = socket.create_server((self.address, 0))  # torch itself would listen on every interface
            self.port = int(listening.getsockname()[1])
            self._store: Any = distributed.TCPStore(
                self.address, self.port, is_master=True, timeout=self.wait, wait_for_workers=False,
                master_listen_fd=listening.detach(),
            )  # fmt: skip
        self._inner: Any = None

    def join(self, world: int) -> None:
        """Enter the group of ``world`` processes as rank 0. With gloo it blocks until all are there.

        Raises:
            GenerationError: they do not all come in time.
        """
        kind = "cuda" if self.backend == "nccl" else "cpu"
        named = distributed.PrefixStore(f"{self.name}/", distributed.PrefixStore(self.name, self._store))
        store = distributed.PrefixStore(f"{kind}/", named)
        with blame(GenerationError, f"{world - 1} processes of the server did not join in {self.wait.total_seconds():.0f} s"):
            self._inner = self._nccl(store, world) if self.backend == "nccl" else join_gloo(store, 0, world, self.wait)

    def _nccl(self, store: Any, world: int) -> Any:
        nccl: Any = distributed.ProcessGroupNCCL
        options = nccl.Options()
        options._timeout = self.wait
        return nccl(store, 0, world, options)

    def broadcast(self, pairs: Sequence[tuple[str, Tensor]]) -> None:
        """Send tensors one after the other; each takes the memory of one on the group's device.

        Raises:
            GenerationError: a process of the server is gone, or does not take a tensor in time.
        """
        for name, tensor in pairs:
            with blame(GenerationError, f'"{name}" did not reach the processes of the server'):
                broadcast(self._inner, tensor.detach().to(self.device).contiguous(), self.wait)
        if self.backend == "nccl":  # whose broadcasts have only been queued
            torch.cuda.synchronize(self.device)

    def close(self) -> None:
        """Leave the group and close the port."""
        self._inner = self._store = None
