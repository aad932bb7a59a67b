"""Drawing tokens: a counter-based random stream per sample, temperature, top-k, top-p, min-p, float32 log-probs."""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from penstock.core.types import SampleKey, Sampling

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


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
    cumulative_BV = probability_BV.double().cumsum(-1)
    point_B1 = uniform_B[:, None] * cumulative_BV[:, -1:]
    token_B = torch.searchsorted(cumulative_BV, point_B1, right=True).squeeze(-1).clamp_(max=logits_BV.shape[-1] - 1)
    token_B = torch.where(greedy_B, logits_BV.argmax(-1), token_B)
    return token_B, logp_BV.gather(-1, token_B[:, None]).squeeze(-1)


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
