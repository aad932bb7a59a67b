"""Drawing tokens: a counter-based random stream per sample, temperature, top-k, top-p, min-p, float32 log-probs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from penstock.core.types import SampleKey, Sampling

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
NEVER = -1e9
"""The logit of a token that is never generated: its probability is exactly 0, and no difference of log-probs is undefined."""
BLOCK = 512
"""Tokens of a block of a large vocabulary."""
WHOLE = 4 * BLOCK
"""Up to so many tokens a vocabulary is searched at once, else block by block: running sums over all cost 28 times as much."""


def uniform_stream(seed: int, key: SampleKey | str, count: int) -> NDArray[np.float64]:
    """``count`` numbers in [0, 1): the i-th depends on (seed, key, i) alone, so batch mates and resumes change nothing.

    SplitMix64 (Steele, Lea and Flood 2014) counts up from a 64-bit hash of seed and key.
    """
    digest = hashlib.blake2b(f"{seed}|{key}".encode(), digest_size=8).digest()
    with np.errstate(over="ignore"):
        z = np.uint64(int.from_bytes(digest, "little")) + np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(11)).astype(np.float64) * 2.0**-53


def draw(logits_BV: Tensor, uniform_B: Tensor, temperature_B: Tensor, cuts: TokenFilters | None) -> tuple[Tensor, Tensor]:
    """Tokens ``[B]`` and their log-probs ``[B]`` by inverting the cumulative distribution at ``uniform_B``.

    Temperature 0 takes the most probable token. The log-prob is that of softmax(logits / temperature) (temperature 1 for
    greedy rows), before top-k, top-p and min-p cut the distribution.
    """
    greedy_B = temperature_B == 0
    scaled_BV = logits_BV / torch.where(greedy_B, 1.0, temperature_B)[:, None]
    logp_BV = scaled_BV.log_softmax(-1)
    probability_BV = logp_BV.exp()
    if cuts is not None:
        probability_BV = cuts.apply(probability_BV)
    token_B = torch.where(greedy_B, largest(logits_BV), inverted(probability_BV, uniform_B))
    return token_B, logp_BV.gather(-1, token_B[:, None]).squeeze(-1)


def inverted(probability_BV: Tensor, uniform_B: Tensor) -> Tensor:
    """The tokens ``[B]`` at which the cumulative distribution passes ``uniform_B`` of its total; none has probability 0."""
    if probability_BV.shape[1] <= WHOLE:
        sum_BV = probability_BV.double().cumsum(-1)
        return _passed(sum_BV, uniform_B[:, None] * sum_BV[:, -1:])
    mass_BK = _by_block(probability_BV, lambda part: part.sum(-1)).double()
    sum_BK = mass_BK.cumsum(-1)
    point_B1 = uniform_B[:, None] * sum_BK[:, -1:]
    block_B1 = _passed(sum_BK, point_B1)[:, None]
    token_BT, part_BT = _within(probability_BV, block_B1, 0.0)
    place_B = _passed(part_BT.double().cumsum(-1), point_B1 - (sum_BK - mass_BK).gather(1, block_B1))
    return token_BT.gather(1, place_B[:, None]).squeeze(-1)


def _passed(sum_BK: Tensor, point_B1: Tensor) -> Tensor:
    """Where running sums ``[B, K]`` in float64 pass a point, which rounding may have put at or past the last of them."""
    below_B1 = torch.nextafter(sum_BK[:, -1:], torch.zeros_like(point_B1))
    return torch.searchsorted(sum_BK, torch.minimum(point_B1, below_B1), right=True).squeeze(-1)


def largest(x_BV: Tensor) -> Tensor:
    """The first of the largest entries of each row, ``[B]``."""
    if x_BV.shape[1] <= WHOLE:
        return x_BV.argmax(-1)
    block_B1 = _by_block(x_BV, lambda part: part.amax(-1)).argmax(-1, keepdim=True)
    token_BT, part_BT = _within(x_BV, block_B1, float("-inf"))
    return token_BT.gather(1, part_BT.argmax(-1, keepdim=True)).squeeze(-1)


def _by_block(x_BV: Tensor, reduced: Callable[[Tensor], Tensor]) -> Tensor:
    """``reduced`` of each block of a row's entries, ``[B, K]``; the last block may be shorter."""
    end = x_BV.shape[1] // BLOCK * BLOCK
    whole_BK, rest_BV = reduced(x_BV[:, :end].unflatten(1, (-1, BLOCK))), x_BV[:, end:]
    return torch.cat([whole_BK, reduced(rest_BV)[:, None]], 1) if rest_BV.shape[1] else whole_BK


def _within(x_BV: Tensor, block_B1: Tensor, past: float) -> tuple[Tensor, Tensor]:
    """The places and entries ``[B, BLOCK]`` of a block of each row, ``past`` beyond the row's end."""
    place_BT = block_B1 * BLOCK + torch.arange(BLOCK, device=x_BV.device)
    inside_BT = place_BT < x_BV.shape[1]
    return place_BT, torch.where(inside_BT, x_BV.gather(1, place_BT.clamp(max=x_BV.shape[1] - 1)), past)


class TokenFilters:
    """Per-row limits of the distribution, as tensors."""

    def __init__(self, samplings: list[Sampling], device: torch.device) -> None:
        self.top_k = torch.tensor([s.top_k for s in samplings], device=device)
        self.top_p = torch.tensor([s.top_p for s in samplings], device=device, dtype=torch.float32)
        self.min_p = torch.tensor([s.min_p for s in samplings], device=device, dtype=torch.float32)

    def apply(self, probability_BV: Tensor) -> Tensor:
        """Zero what the limits exclude; the most probable token always stays.

        ``top_p`` is a share of what ``top_k`` has left, as in transformers and vLLM.
        """
        ordered, index = probability_BV.sort(-1, descending=True)
        rank = torch.arange(ordered.shape[-1], device=ordered.device)
        limit = torch.where(self.top_k > 0, self.top_k, ordered.shape[-1])
        keep = rank < limit[:, None]
        held = (ordered * keep).cumsum(-1)
        share = torch.where(self.top_p < 1, self.top_p * torch.where(self.top_k > 0, held[:, -1], 1.0), float("inf"))
        keep &= held - ordered < share[:, None]
        keep &= ordered >= self.min_p[:, None] * ordered[:, :1]
        keep[:, 0] = True
        return torch.zeros_like(probability_BV).scatter_(-1, index, ordered * keep)


def needs_filters(sampling: Sampling) -> bool:
    """Whether any limit of the distribution is set."""
    return bool(sampling.top_k) or sampling.top_p < 1 or sampling.min_p > 0
