"""A slow copy of a denoiser, which draws in its place: DiffusionNFT's old policy."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

SLOW = "slow"
"""Name of the copy among a denoiser's heads."""


class SlowCopy(nn.Module):
    """A frozen copy that follows its model after every ``every``-th optimizer step. At its n-th move (from 0) it keeps the
    share ``min(rise · n, most)`` of itself, so that the first ones make it the model."""

    def __init__(self, model: Any, rise: float, most: float, every: int) -> None:
        super().__init__()
        self.model = copy.deepcopy(model).requires_grad_(False)
        self.rise, self.most, self.every = rise, most, every

    @torch.no_grad()
    def follow(self, updates: int, model: Any) -> None:
        """Move towards the model, of which ``updates`` optimizer steps have been taken."""
        if updates % self.every:
            return
        kept = min(self.rise * (updates // self.every - 1), self.most)
        for (_, slow), (_, fast) in zip(self.weights(), model.plain_weights(), strict=True):
            slow.lerp_(fast.to(slow.dtype), 1 - kept)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """(name, tensor) of the copy, for generators and checkpoints."""
        yield from ((name, tensor.detach()) for name, tensor in self.model.policy_weights())
