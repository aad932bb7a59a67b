"""Gradients of replicas, summed over the ranks while the last backward pass of a step still runs.

Parameters are put into buckets in the reverse of their order, which is about the order in which gradients come. A bucket is
sent as soon as all of its gradients are there, and buckets go out in the same order on all ranks (Li et al. 2020,
arXiv:2006.15704).
"""

from __future__ import annotations

from itertools import groupby
from typing import Any

import torch
import torch.distributed as distributed
from torch import Tensor

from penstock.train.optimizer import Masters
from penstock.train.world import buckets

Sent = tuple[Any, Tensor, list[Tensor]]
"""What is on its way: the sum, its tensor, and the masters whose gradients it holds, one after the other; then, for each of
them, on how many ranks there is a gradient."""


class Reduction:
    """The sum over ranks of the gradients of a replica's masters."""

    def __init__(self, masters: Masters) -> None:
        pairs = list(zip(masters.parameters.values(), masters.masters, strict=True))[::-1]
        kinds = [list(same) for _, same in groupby(pairs, lambda pair: pair[1].dtype)]
        self.members = [bucket for kind in kinds for bucket in buckets(kind, lambda pair: pair[1].nbytes)]
        self._place = {id(parameter): place for place, bucket in enumerate(self.members) for parameter, _ in bucket}
        self._missing: list[int] = []
        """How many gradients each bucket waits for; none outside of a last backward pass."""
        self._sent: list[Sent] = []
        for parameter, _ in pairs:
            parameter.register_post_accumulate_grad_hook(self._arrived)

    @property
    def summed(self) -> bool:
        """Whether gradients are sums over the ranks already, or on their way to be."""
        return bool(self._sent)

    def begin(self) -> None:
        """The next backward pass of this rank, if it has one, is the last before the step."""
        self._missing = [len(bucket) for bucket in self.members]

    def end(self) -> None:
        """Send what has not been sent, because its gradients did not come in this pass."""
        while len(self._sent) < len(self.members):
            self._send()
        self._missing = []

    def _arrived(self, parameter: Tensor) -> None:
        if self._missing:
            self._missing[self._place[id(parameter)]] -= 1
            while len(self._sent) < len(self.members) and not self._missing[len(self._sent)]:
                self._send()

    @torch.no_grad()
    def _send(self) -> None:
        """Send the next bucket."""
        held = [master for _, master in self.members[len(self._sent)]]
        here = held[0].new_ones(len(held))
        for place, master in enumerate(held):
            if master.grad is None:
                here[place] = 0
                master.grad = torch.zeros_like(master)
        flat = torch.cat([*(master.grad.flatten() for master in held if master.grad is not None), here])
        for master in held:
            master.grad = None
        self._sent.append((distributed.all_reduce(flat, async_op=True), flat, held))

    def finish(self) -> None:
        """Wait for the sums, which become the gradients; one that no rank has stays None."""
        sent, self._sent = self._sent, []
        for work, _, _ in sent:
            work.wait()
        ranks = iter([count for _, flat, held in sent for count in flat[-len(held) :].tolist()])
        for _, flat, held in sent:
            *sums, _ = flat.split([*(master.numel() for master in held), len(held)])
            for master, total in zip(held, sums, strict=True):
                master.grad = total.view_as(master) if next(ranks) else None
