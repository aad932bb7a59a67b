"""Networks of control policies: feed-forward, convolutional, or with a memory, with heads for decision and value."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from penstock.core.errors import ModelError
from penstock.models.control_memory import Recurrence, Window
from penstock.models.decisions import Categorical, Gaussian, Greedy, Mixed, Squashed

Layer = TypeVar("Layer", nn.Linear, nn.Conv2d)
FORBIDDEN = -1e9
"""The logit of an option that a mask forbids."""
LIMIT = 10.0
"""Deviations that a normalised number may lie from the mean."""


@dataclass(frozen=True)
class Shape:
    """What a control network is built from: plain values, saved with its weights."""

    observation: int
    """Numbers of an observation, without its mask."""
    choices: tuple[int, ...] = ()
    """Options of each discrete part of a decision; empty: there are none."""
    continuous: int = 0
    """Numbers of a decision, after its discrete parts."""
    hidden: tuple[int, ...] = (64, 64)
    activation: str = "tanh"
    memory: int = 0
    attention: int = 0
    blocks: int = 1
    critic: str = "shared"
    image: tuple[int, ...] = ()  # channels, height and width, of an observation whose first numbers are bytes of pixels
    convolutions: tuple[tuple[int, int, int], ...] = ()
    """Channels, kernel and stride of each convolution of an image."""
    masked: bool = False
    """Whether further numbers follow an observation, one an option: 0 where that is forbidden."""
    normalize: bool = False
    deviation: float = 1.0
    context: int = 0
    """Numbers after those of an observation that only a critic apart reads: what all agents of a game see."""
    noisy: float = 0.0
    """First deviation of what layers multiply with, times the root of their inputs; 0: they have no noise."""
    quantiles: int = 0
    """Of each option's return, where numbers of a decision are values of its options."""
    kind: str = "policy"  # or "q", "dueling" (numbers of a decision are values of its options), "soft" (a squashed normal)


class Moments(nn.Module):
    """Count, mean and sum of squared deviations of ``[F]`` numbers seen so far, in float64, and what follows from them.

    Calling it subtracts the mean and divides by the deviation, cut to ±LIMIT; before anything was seen it changes nothing else.
    """

    count: Tensor
    mean: Tensor
    squares: Tensor
    shift: Tensor
    scale: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        for name, first in (("count", torch.zeros(1)), ("mean", torch.zeros(width)), ("squares", torch.zeros(width))):
            self.register_buffer(name, first.double())
        self.register_buffer("shift", torch.zeros(width))
        self.register_buffer("scale", torch.ones(width))

    def forward(self, numbers_BF: Tensor) -> Tensor:
        return ((numbers_BF - self.shift) * self.scale).clamp(-LIMIT, LIMIT)

    def values(self) -> tuple[float, Any, Any]:
        return float(self.count), self.mean.cpu().numpy(), self.squares.cpu().numpy()

    @torch.no_grad()
    def become(self, count: float, mean_F: Any, squares_F: Any) -> None:
        """Take new moments."""
        self.count.fill_(count)
        self.mean.copy_(torch.from_numpy(np.asarray(mean_F)))
        self.squares.copy_(torch.from_numpy(np.asarray(squares_F)))
        self.shift.copy_(self.mean)
        self.scale.copy_((self.squares / max(count, 1.0) + 1e-8).rsqrt())


class Pixels(nn.Module):
    """Bytes ``[B, C·H·W]`` as images of numbers between 0 and 1."""

    def __init__(self, image: tuple[int, ...]) -> None:
        super().__init__()
        self.image = image

    def forward(self, bytes_BF: Tensor) -> Tensor:
        return bytes_BF.unflatten(1, self.image).to(torch.float32, memory_format=torch.channels_last).mul_(1 / 255)


class Sight(nn.Module):
    """What convolutions see in the image that a row begins with, then the row's other numbers."""

    def __init__(self, layers: list[nn.Module], image: tuple[int, ...]) -> None:
        super().__init__()
        self.layers, self.image = nn.Sequential(*layers), math.prod(image)

    def forward(self, row_BF: Tensor) -> Tensor:
        return torch.cat((self.layers(row_BF[:, : self.image]), row_BF[:, self.image :]), 1)


class Noisy(nn.Module):
    """A linear layer with learned deviations (Fortunato et al. 2018, arXiv 1706.10295) and factorised noise of each row's own:
    ``noise_BK`` are normal numbers, one for each input and output. Without them the layer is its means."""

    noise_BK: Tensor | None = None

    def __init__(self, mean: nn.Linear, deviation: float) -> None:
        super().__init__()
        self.mean, self.sizes = mean, [mean.in_features, mean.out_features]
        first = deviation / mean.in_features**0.5
        self.weight = nn.Parameter(torch.full_like(mean.weight, first))
        self.bias = nn.Parameter(torch.full_like(mean.bias, first))

    def forward(self, numbers_BI: Tensor) -> Tensor:
        mean_BO: Tensor = self.mean(numbers_BI)
        if self.noise_BK is None:
            return mean_BO
        before_BI, after_BO = (self.noise_BK.sign() * self.noise_BK.abs().sqrt()).split(self.sizes, -1)
        return mean_BO + after_BO * nn.functional.linear(before_BI * numbers_BI, self.weight, self.bias)


class ControlNetwork(nn.Module):
    """Perhaps convolutions, hidden layers, perhaps a memory, and one linear head for decision and value.

    Orthogonal first weights: gain √2 in hidden layers, 0.01 for decisions and 1 for values (Andrychowicz et al. 2021,
    arXiv 2006.05990).
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.decisions = decisions_of(shape)
        self.normal = Moments(shape.observation + shape.context) if shape.normalize else None
        self.rewards = Moments(1)  # of discounted returns, where rewards are scaled
        self.trunk, width = trunk(shape)
        self.cell = memory_of(shape, width)
        width = width if self.cell is None else self.cell.width
        whole = replace(shape, observation=shape.observation + shape.context)
        self.critic = trunk(whole)[0] if shape.critic != "shared" else None
        each = shape.quantiles or 1
        self.decide = head(width, self.decisions.width * each, 0.01)
        self.judge = head(width, each, 1.0)
        self.noisy = self._noisy() if shape.noisy else []
        self.noise = sum(sum(layer.sizes) for layer in self.noisy)
        """Numbers of noise that a row may be given."""
        if isinstance(self.decisions, Greedy):
            self.decisions.more = self.noise

    def _noisy(self) -> list[Noisy]:
        """All linear layers, which have noise from now on."""
        for parent in (self.trunk, self):
            for name, layer in list(parent.named_children()):
                if isinstance(layer, nn.Linear):
                    setattr(parent, name, Noisy(layer, self.shape.noisy))
        return [layer for layer in self.modules() if isinstance(layer, Noisy)]

    @contextmanager
    def shaken(self, noise_BK: Tensor | None) -> Iterator[None]:
        """Within it rows have this noise, ``[B, noise]`` of normal numbers; None: none."""
        pieces = [None] * len(self.noisy) if noise_BK is None else noise_BK.split([sum(one.sizes) for one in self.noisy], -1)
        for layer, piece in zip(self.noisy, pieces, strict=True):
            layer.noise_BK = piece
        try:
            yield
        finally:
            for layer in self.noisy:
                layer.noise_BK = None

    def forward(
        self, observation_BF: Tensor, state_BS: Tensor | None = None, judged: bool = True
    ) -> tuple[Tensor, Tensor | None]:
        """``[B, width + 1]`` of the decision's distribution and the value, and what is remembered after the step.

        Without ``judged``, for a critic apart from the actor, ``[B, width]``: it costs nothing then.
        """
        observation_BF, mask_BW = self._seen(observation_BF)
        hidden_BH = self.trunk(observation_BF[:, : self.shape.observation] if self.shape.context else observation_BF)
        if self.cell is not None:
            assert state_BS is not None
            hidden_BH, state_BS = self.cell.step(hidden_BH, state_BS)
        return self._headed(hidden_BH, observation_BF, mask_BW, judged), state_BS

    def _headed(self, hidden_BH: Tensor, observation_BF: Tensor, mask_BW: Tensor | None, judged: bool) -> Tensor:
        """Numbers of the decision and the value, from what the layers and the memory give."""
        if self.shape.quantiles:
            numbers_BW = self._options(hidden_BH).mean(-1)
            return self._masked(torch.cat((numbers_BW, numbers_BW.amax(-1, keepdim=True)), -1), mask_BW)
        numbers_BW = self.decide(hidden_BH)
        value_B1 = self.judge(hidden_BH if self.critic is None else self.critic(observation_BF)) if judged else None
        if self.shape.kind == "dueling":
            numbers_BW = value_B1 + numbers_BW - numbers_BW.mean(-1, keepdim=True)
        return self._masked(numbers_BW if value_B1 is None else torch.cat((numbers_BW, value_B1), -1), mask_BW)

    def _masked(self, numbers_BW: Tensor, mask_BW: Tensor | None) -> Tensor:
        """Numbers of which the first are those of options, those that a mask forbids far below any other."""
        if mask_BW is None:
            return numbers_BW
        options_BW, rest_BW = numbers_BW.tensor_split((mask_BW.shape[1],), 1)
        return torch.cat((options_BW.masked_fill(mask_BW == 0, FORBIDDEN), rest_BW), 1)

    def _options(self, hidden_BH: Tensor) -> Tensor:
        """Quantiles of each option's return, ``[B, W, K]``."""
        found_BWK = self.decide(hidden_BH).unflatten(-1, (-1, self.shape.quantiles))
        if self.shape.kind == "dueling":
            found_BWK = self.judge(hidden_BH)[:, None] + found_BWK - found_BWK.mean(1, keepdim=True)
        return found_BWK

    def quantiles(self, observation_BF: Tensor) -> Tensor:
        """``[B, W, K]``: quantiles of each option's return, forbidden ones too."""
        return self._options(self.trunk(self._seen(observation_BF)[0]))

    def judgement(self, observation_BF: Tensor) -> Tensor:
        """``[B]`` values by a critic apart from the actor."""
        assert self.critic is not None
        value_B: Tensor = self.judge(self.critic(self._seen(observation_BF)[0]))[:, 0]
        return value_B

    def _seen(self, observation_BF: Tensor) -> tuple[Tensor, Tensor | None]:
        """Observations as the layers read them, and their masks."""
        mask_BW = None
        if self.shape.masked:
            observation_BF, mask_BW = observation_BF.tensor_split((self.shape.observation + self.shape.context,), 1)
        return observation_BF if self.normal is None else self.normal(observation_BF), mask_BW

    def unrolled(self, observation_TNF: Tensor, start_TN: Tensor, state_NS: Tensor) -> Tensor:
        """``[T, N, width + 1]`` of sequences, by a policy with a memory, which is empty where an episode starts."""
        assert self.cell is not None
        grid = observation_TNF.shape[:2]
        observation_BF, mask_BW = self._seen(observation_TNF.flatten(0, 1))
        hidden_TNH = self.cell.unrolled(self.trunk(observation_BF).unflatten(0, grid), start_TN, state_NS)
        return self._headed(hidden_TNH.flatten(0, 1), observation_BF, mask_BW, True).unflatten(0, grid)


def decisions_of(shape: Shape) -> Categorical | Gaussian | Mixed:
    if shape.kind == "policy":
        if shape.choices and shape.continuous:
            return Mixed(shape.choices, shape.continuous, shape.deviation)
        return Gaussian(shape.continuous, shape.deviation) if shape.continuous else Categorical(shape.choices)
    return Squashed(shape.continuous) if shape.kind == "soft" else Greedy(shape.choices)


def memory_of(shape: Shape, width: int) -> Recurrence | Window | None:
    """What a network remembers with, if anything, after layers of this width."""
    if shape.attention:
        return Window(width, shape.attention, shape.blocks)
    return Recurrence(width, shape.memory) if shape.memory else None


def trunk(shape: Shape) -> tuple[nn.Sequential, int]:
    """What leads from an observation to the heads: convolutions of an image, then linear layers; and the width of the last."""
    found, width = convolutions(shape) if shape.image else ([], shape.observation)
    if shape.image and (more := shape.observation - math.prod(shape.image)):
        found, width = [Sight(found, shape.image)], width + more
    for size in shape.hidden:
        found += [head(width, size, 2**0.5), nn.Tanh() if shape.activation == "tanh" else nn.ReLU()]
        width = size
    return nn.Sequential(*found), width


def convolutions(shape: Shape) -> tuple[list[nn.Module], int]:
    """Convolutions with relu, as Mnih et al. 2015 have them for Atari, and how many numbers come out.

    Raises ModelError where an image is smaller than a kernel.
    """
    channels, *sides = shape.image
    found: list[nn.Module] = [Pixels(shape.image)]
    for out, kernel, stride in shape.convolutions:
        if min(sides) < kernel:
            raise ModelError(
                f"model.convolutions: a kernel of {kernel} on {sides[0]} × {sides[1]} of an image {shape.image}; give smaller "
                "ones, such as [[16, 3, 1]] (channels, kernel, stride)"
            )
        layer = primed(nn.Conv2d(channels, out, kernel, stride), 2**0.5)
        layer.weight.data = layer.weight.data.contiguous(memory_format=torch.channels_last)
        found += [layer, nn.ReLU()]
        channels, sides = out, [(side - kernel) // stride + 1 for side in sides]
    return [*found, nn.Flatten()], channels * sides[0] * sides[1]


def head(width: int, outputs: int, gain: float) -> nn.Linear:
    return primed(nn.Linear(width, outputs), gain)


def primed(layer: Layer, gain: float) -> Layer:
    """The layer with orthogonal first weights of a gain and no bias."""
    nn.init.orthogonal_(layer.weight, gain)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer
