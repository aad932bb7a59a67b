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

    def forward(self, hidden_AH: Tensor, condition_UH: Tensor, which_A: Tensor) -> Tensor:
        scale_AH, shift_AH = self.steer(condition_UH).index_select(0, which_A).chunk(2, -1)
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
        # Samples of a prompt share their times and their prompt, so a batch has far fewer conditions than states.
        given_UC, which_A = torch.unique(torch.cat([time_A[:, None].double(), prompt_AC], -1), dim=0, return_inverse=True)
        condition_UH = nn.functional.silu(self._condition(given_UC[:, 0].to(time_A.dtype), given_UC[:, 1:].long()))
        hidden_AH = self.enter(state_AD.flatten(1))
        for block in self.blocks:
            hidden_AH = block(hidden_AH, condition_UH, which_A)
        return self.leave(hidden_AH).reshape(state_AD.shape)

    def _condition(self, time_U: Tensor, prompt_UC: Tensor) -> Tensor:
        powers = torch.arange(FREQUENCIES, device=time_U.device, dtype=time_U.dtype) / (FREQUENCIES - 1)
        angle_UF = time_U[:, None] * 100.0**powers * math.pi
        return self.time(torch.cat([angle_UF.cos(), angle_UF.sin()], -1)) + self._read(prompt_UC)

    def _read(self, prompt_UC: Tensor) -> Tensor:
        known_UC1 = (prompt_UC != self.pad)[..., None]
        read_UCH = self.pieces(prompt_UC) + self.places.weight[: prompt_UC.shape[1]]
        return (read_UCH * known_UC1).sum(1) / known_UC1.sum(1).clamp(min=1)
