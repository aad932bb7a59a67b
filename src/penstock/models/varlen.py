"""Attention over runs of different lengths without padding and without a mask, by a kernel that takes them packed.

On CUDA a mask leaves torch's padded attention without its flash kernel, and grouped queries leave it without the
memory-efficient one: scores would be materialised. A kernel is taken only where it was seen to compute the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, cast

import torch
from torch import Tensor

TOLERANCE = 0.03
"""Of a kernel's numbers of order 1, in half precision."""


@dataclass(frozen=True)
class PackedRuns:
    """Runs one after the other: packed index of each query and key, where runs begin (``[R + 1]``, int32), and the longest."""

    query_N: Tensor
    key_M: Tensor
    starts: tuple[Tensor, Tensor]
    longest: tuple[int, int]
    place_N: Tensor
    """Where each packed query lies among them."""


Kernel = Callable[[Tensor, Tensor, Tensor, PackedRuns, float, tuple[int, int]], Tensor]
"""``[N, H, D]`` of queries ``[N, H, D]``, keys and values ``[M, K, D]`` in the order of the runs; the scale of scores; how many
keys a query sees to the left and right of its own, which is that far from the end of its run's keys as it is from the end of
its queries; -1: all."""


def flash(
    query_NHD: Tensor, key_MKD: Tensor, value_MKD: Tensor, runs: PackedRuns, scale: float, window: tuple[int, int], **more: Any
) -> Tensor:
    """torch's flash attention for runs (Dao 2023, arXiv:2307.08691), in half precision on CUDA."""
    from torch.nn.attention.varlen import varlen_attn

    return cast(
        Tensor, varlen_attn(query_NHD, key_MKD, value_MKD, *runs.starts, *runs.longest, scale=scale, window_size=window, **more)
    )


CANDIDATES: tuple[Kernel, ...] = (partial(flash, enable_gqa=True), flash)
"""The second for versions of torch that take grouped queries without that word."""


@cache
def kernel_of(device: torch.device, dtype: torch.dtype, heads: int, key_heads: int, width: int) -> Kernel | None:
    """The first kernel that computes attention of such heads, forward and backward; None where there is none: torch's padded
    attention computes it then."""
    if device.type != "cuda" or dtype not in (torch.bfloat16, torch.float16):
        return None
    for candidate in CANDIDATES:
        try:
            if agrees(candidate, device, dtype, heads, key_heads, width):
                return candidate
        except (RuntimeError, TypeError, ValueError, ImportError, NotImplementedError):
            continue  # this torch, or this GPU, has no such kernel: what was probed for, not a fault
    return None


@torch.enable_grad()
def agrees(kernel: Kernel, device: torch.device, dtype: torch.dtype, heads: int, key_heads: int, width: int) -> bool:
    """Whether a kernel gives what float32 gives, and its gradients: two runs, one of them with keys before its queries."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((8, heads, width), (12, key_heads, width), (12, key_heads, width))
    given = [torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes]
    borders = [torch.tensor(places, dtype=torch.int32, device=device) for places in ((0, 3, 8), (0, 7, 12))]
    order_N, order_M = torch.arange(8, device=device), torch.arange(12, device=device)
    runs = PackedRuns(order_N, order_M, (borders[0], borders[1]), (5, 7), order_N)
    for window in ((-1, 0), (2, 0), (-1, -1)):
        ours, exact = ([state.clone().to(kind).requires_grad_() for state in given] for kind in (dtype, torch.float32))
        found = kernel(ours[0], ours[1], ours[2], runs, width**-0.5, window)
        expected = plain(exact[0], exact[1], exact[2], runs, width**-0.5, window)
        gradients = torch.autograd.grad(found.float().square().sum(), ours)
        wanted = torch.autograd.grad(expected.square().sum(), exact)
        for one, other in zip((found, *gradients), (expected, *wanted), strict=True):
            if not torch.allclose(one.float(), other, atol=TOLERANCE * (1 + float(other.detach().abs().max()))):
                return False
    return True


def plain(
    query_NHD: Tensor, key_MKD: Tensor, value_MKD: Tensor, runs: PackedRuns, scale: float, window: tuple[int, int]
) -> Tensor:
    """What a kernel computes, run by run with whole scores."""
    (query_starts, key_starts), parts = (starts.tolist() for starts in runs.starts), []
    for run in range(len(query_starts) - 1):
        query = query_NHD[query_starts[run] : query_starts[run + 1]]
        key, value = (state[key_starts[run] : key_starts[run + 1]] for state in (key_MKD, value_MKD))
        key, value = (state.repeat_interleave(query.shape[1] // key.shape[1], 1) for state in (key, value))
        place = torch.arange(len(query), device=query.device)[:, None] + len(key) - len(query)
        distance = torch.arange(len(key), device=query.device) - place
        seen = (distance <= window[1]) | (window[1] < 0)
        seen &= (-distance <= window[0]) | (window[0] < 0)
        scores = torch.einsum("nhd,mhd->hnm", query, key).mul(scale).masked_fill(~seen, float("-inf"))
        parts.append(torch.einsum("hnm,mhd->nhd", scores.softmax(-1), value))
    return torch.cat(parts)
