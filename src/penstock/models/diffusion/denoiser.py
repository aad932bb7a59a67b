"""A small denoiser from scratch: a residual network over a picture's values, steered by its time and by the prompt."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

FREQUENCIES = 32
"""Waves that a time is written in."""


class Block(nn.Module):
    """A residual layer whose normalised input is scaled and shifted by the condition (Perez et al. 2018, arXiv 1709.07871)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.steer = nn.Linear(width, 2 * width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        nn.init.zeros_(self.down.weight)
        nn.init.zeros_(self.down.bias)

    def forward(self, hidden_AH: Tensor, condition_AH: Tensor) -> Tensor:
        scale_AH, shift_AH = self.steer(condition_AH).chunk(2, -1)
        inner_AH = self.norm(hidden_AH) * (1 + scale_AH) + shift_AH
        return hidden_AH + self.down(nn.functional.silu(self.up(inner_AH)))


class Denoiser(nn.Module):
    """Predicts, from a noisy picture ``[A, *shape]``, its time ``[A]`` and a prompt ``[A, C]`` (padded by ``pad``), an array of
    the picture's shape. The prompt is read as the mean of its pieces, each with its place."""

    def __init__(self, shape: Sequence[int], vocab_size: int, context: int, width: int, layers: int, pad: int) -> None:
        super().__init__()
        self.shape, self.pad = tuple(shape), pad
        size = math.prod(shape)
        self.pieces = nn.Embedding(vocab_size, width)
        self.places = nn.Embedding(context, width)
        self.time = nn.Sequential(nn.Linear(2 * FREQUENCIES, width), nn.SiLU(), nn.Linear(width, width))
        self.enter = nn.Linear(size, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.leave = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, size))

    def forward(self, state_AD: Tensor, time_A: Tensor, prompt_AC: Tensor) -> Tensor:
        powers = torch.arange(FREQUENCIES, device=time_A.device, dtype=time_A.dtype) / (FREQUENCIES - 1)
        angle_AF = time_A[:, None] * 100.0**powers * math.pi
        condition_AH = self.time(torch.cat([angle_AF.cos(), angle_AF.sin()], -1)) + self._read(prompt_AC)
        hidden_AH = self.enter(state_AD.flatten(1))
        for block in self.blocks:
            hidden_AH = block(hidden_AH, nn.functional.silu(condition_AH))
        return self.leave(hidden_AH).reshape(state_AD.shape)

    def _read(self, prompt_AC: Tensor) -> Tensor:
        known_AC1 = (prompt_AC != self.pad)[..., None]
        read_ACH = self.pieces(prompt_AC) + self.places.weight[: prompt_AC.shape[1]]
        return (read_ACH * known_AC1).sum(1) / known_AC1.sum(1).clamp(min=1)
