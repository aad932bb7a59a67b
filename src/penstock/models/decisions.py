"""Distributions of control decisions: discrete parts, a vector of numbers, or both. ``W`` numbers of a network describe one."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Categorical(nn.Module):
    """Discrete parts, each sampled by itself; a decision is ``[D]`` of integers. One part is the usual case."""

    has_logp = True

    def __init__(self, choices: Sequence[int]) -> None:
        super().__init__()
        self.choices, self.width = list(choices), sum(choices)

    def noise(self, steps: int, environments: int, generator: torch.Generator) -> Tensor:
        """Gumbel noise for a fragment, ``[T, N, W]``: the largest of log-probs plus this is a sample."""
        exponential = torch.empty(steps, environments, self.width).exponential_(generator=generator)
        return exponential.log_().neg_()

    def sampled(self, numbers_NW: Tensor, noise_NW: Tensor | None) -> Tensor:
        """A sample, or the most likely decision where there is no noise."""
        noisy_NW = numbers_NW if noise_NW is None else numbers_NW + noise_NW
        if len(self.choices) == 1:
            return noisy_NW.argmax(-1, keepdim=True)
        return torch.stack([part.argmax(-1) for part in noisy_NW.split(self.choices, -1)], -1)

    def measured(self, numbers_AW: Tensor, decision_AD: Tensor, needs: frozenset[str]) -> dict[str, Tensor]:
        """Log-prob and entropy of each decision, those that are asked for."""
        found: dict[str, Tensor] = {}
        if not needs & {"logp", "entropy"}:
            return found
        parts = [part.log_softmax(-1) for part in numbers_AW.split(self.choices, -1)]
        if "logp" in needs:
            taken = [part.gather(-1, decision_AD[:, [at]])[:, 0] for at, part in enumerate(parts)]
            found["logp"] = taken[0] if len(taken) == 1 else torch.stack(taken).sum(0)
        if "entropy" in needs:
            entropies = [-(part.exp() * part).sum(-1) for part in parts]
            found["entropy"] = entropies[0] if len(entropies) == 1 else torch.stack(entropies).sum(0)
        return found


class Gaussian(nn.Module):
    """Independent normals whose deviations are parameters of their own, whatever the state; a decision is ``[D]`` of numbers.

    Log-probs are of the decision before environments cut it to their bounds.
    """

    has_logp = True

    def __init__(self, width: int, deviation: float = 1.0) -> None:
        super().__init__()
        self.width = self.numbers = width
        self.log_deviation = nn.Parameter(torch.full((width,), math.log(deviation)))

    def noise(self, steps: int, environments: int, generator: torch.Generator) -> Tensor:
        """Standard normal noise for a fragment, ``[T, N, W]``."""
        return torch.randn(steps, environments, self.numbers, generator=generator)

    def sampled(self, numbers_NW: Tensor, noise_NW: Tensor | None) -> Tensor:
        """A sample, or the mean where there is no noise."""
        return numbers_NW if noise_NW is None else numbers_NW + self.log_deviation.exp() * noise_NW

    def measured(self, numbers_AW: Tensor, decision_AD: Tensor, needs: frozenset[str]) -> dict[str, Tensor]:
        """Log-prob and entropy of each decision, those that are asked for."""
        found: dict[str, Tensor] = {}
        scale = self.log_deviation
        if "logp" in needs:
            standard_AD = (decision_AD - numbers_AW) * (-scale).exp()
            found["logp"] = -(0.5 * standard_AD.square() + scale + 0.5 * math.log(2 * math.pi)).sum(-1)
        if "entropy" in needs:
            found["entropy"] = (scale + 0.5 * math.log(2 * math.pi * math.e)).sum().expand(len(numbers_AW))
        return found


class Mixed(nn.Module):
    """Discrete parts and then numbers, independent of each other; a decision is ``[D]`` of numbers, those of parts whole."""

    has_logp = True

    def __init__(self, choices: Sequence[int], numbers: int, deviation: float = 1.0) -> None:
        super().__init__()
        self.parts, self.normal = Categorical(choices), Gaussian(numbers, deviation)
        self.width = self.parts.width + self.normal.width

    def noise(self, steps: int, environments: int, generator: torch.Generator) -> Tensor:
        """Noise of both for a fragment, ``[T, N, W]``."""
        return torch.cat([one.noise(steps, environments, generator) for one in (self.parts, self.normal)], -1)

    def sampled(self, numbers_NW: Tensor, noise_NW: Tensor | None) -> Tensor:
        """A sample, or the most likely parts and the mean where there is no noise."""
        first, second = self._both(numbers_NW)
        noises = (None, None) if noise_NW is None else self._both(noise_NW)
        return torch.cat((self.parts.sampled(first, noises[0]).to(second.dtype), self.normal.sampled(second, noises[1])), -1)

    def measured(self, numbers_AW: Tensor, decision_AD: Tensor, needs: frozenset[str]) -> dict[str, Tensor]:
        """Log-prob and entropy of each decision, those that are asked for: sums over what is independent."""
        first, second = self._both(numbers_AW)
        count = len(self.parts.choices)
        discrete = self.parts.measured(first, decision_AD[:, :count].long(), needs)
        continuous = self.normal.measured(second, decision_AD[:, count:], needs)
        return {name: value + continuous[name] for name, value in discrete.items()}

    def _both(self, numbers_NW: Tensor) -> tuple[Tensor, Tensor]:
        first, second = numbers_NW.split([self.parts.width, self.normal.width], -1)
        return first, second


class Greedy(Categorical):
    """The option of the largest number, which is its value, or now and then any option. It has no log-probs."""

    explore: float = 0.0
    """Share of decisions at random."""
    more: int = 0
    """Numbers of noise for the layers of the network."""
    has_logp = False

    def noise(self, steps: int, environments: int, generator: torch.Generator) -> Tensor:
        """Noise ``[T, N, W + more]``: far above any value where a decision is random, and else 0; then normal numbers."""
        random = torch.rand(steps, environments, 1, generator=generator) < self.explore
        noise_TNW = torch.rand(steps, environments, self.width, generator=generator) * 1e6 * random
        if not self.more:
            return noise_TNW
        return torch.cat((noise_TNW, torch.randn(steps, environments, self.more, generator=generator)), -1)


class Squashed(Gaussian):
    """Normals of mean and deviation by the state, through tanh: decisions between -1 and 1 (arXiv 1812.05905, appendix C)."""

    has_logp = False

    def __init__(self, numbers: int) -> None:
        nn.Module.__init__(self)
        self.width, self.numbers = 2 * numbers, numbers

    def sampled(self, numbers_NW: Tensor, noise_ND: Tensor | None) -> Tensor:
        return numbers_NW.chunk(2, -1)[0].tanh() if noise_ND is None else self.squashed(numbers_NW, noise_ND)[0]

    def squashed(self, numbers_AW: Tensor, noise_AD: Tensor) -> tuple[Tensor, Tensor]:
        """Decisions of given noise and their log-probs, both with gradient."""
        mean_AD, log_AD = numbers_AW.chunk(2, -1)
        log_AD = log_AD.clamp(-5, 2)
        before_AD = mean_AD + log_AD.exp() * noise_AD
        # log(1 - tanh²) without a difference of nearly equal numbers
        slope_AD = 2 * (math.log(2) - before_AD - nn.functional.softplus(-2 * before_AD))
        normal_AD = -0.5 * noise_AD.square() - log_AD - 0.5 * math.log(2 * math.pi)
        return before_AD.tanh(), (normal_AD - slope_AD).sum(-1)
