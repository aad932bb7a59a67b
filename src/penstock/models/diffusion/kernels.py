"""Transitions of a denoising trajectory: from a state, what the denoiser predicts there and two times to the Gaussian of the
next state. Pure functions, the same for generator and learner.

Times go from 1 (noise) to 0 (picture). ``state_AD`` and ``predicted_AD`` are ``[A, ...]``, ``time_A`` and ``next_A`` ``[A]``;
each gives the mean ``[A, ...]`` and the standard deviation ``[A]``, which is 0 where ``noise`` is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Gaussian = tuple[Tensor, Tensor]
LEAST_SIGNAL = 1e-4
"""Share of the picture's variance at time 1, which is not quite 0 so that the picture can be computed from state and noise."""


def like(value_A: Tensor, state_AD: Tensor) -> Tensor:
    """A number an action as a column that multiplies its state."""
    return value_A.reshape(-1, *[1] * (state_AD.ndim - 1))


def flow(state_AD: Tensor, velocity_AD: Tensor, time_A: Tensor, next_A: Tensor, noise_A: Tensor) -> Gaussian:
    """Flow-GRPO's stochastic step (arXiv 2505.05470, eq. 9), with ``x_t = (1 - t) x_0 + t ε`` and velocity ``ε - x_0``.

    ``σ_t = a √(t / (1 - t))``, and at t = 1 that of the next time. It keeps the marginals of the flow as steps grow short; with
    ``a = 0`` it is Euler's.
    """
    span_A = next_A - time_A  # negative
    reached_A = torch.where(time_A < 1, time_A, next_A)
    spread_A = noise_A * (reached_A / (1 - reached_A)).sqrt()
    kept = 1 + like(spread_A.square() * span_A / (2 * time_A), state_AD)
    moved = like((1 + spread_A.square() * (1 - time_A) / (2 * time_A)) * span_A, state_AD)
    return state_AD * kept + velocity_AD * moved, spread_A * (-span_A).sqrt()


def dance(state_AD: Tensor, velocity_AD: Tensor, time_A: Tensor, next_A: Tensor, noise_A: Tensor) -> Gaussian:
    """DanceGRPO's stochastic step (arXiv 2505.07818): the same noise at all times, against the score of the marginal."""
    span_A = next_A - time_A
    picture_AD = state_AD - like(time_A, state_AD) * velocity_AD
    score_AD = -(state_AD - like(1 - time_A, state_AD) * picture_AD) / like(time_A.square(), state_AD)
    pulled_AD = 0.5 * like(noise_A.square() * span_A, state_AD) * score_AD
    return state_AD + velocity_AD * like(span_A, state_AD) - pulled_AD, noise_A * (-span_A).sqrt()


def signal(time_A: Tensor) -> Tensor:
    """The share ᾱ of the picture's variance that is left at a time, by the cosine schedule (arXiv 2102.09672); 1 at time 0."""
    left_A = LEAST_SIGNAL + (1 - LEAST_SIGNAL) * (time_A * (math.pi / 2)).cos().square()
    return torch.where(time_A > 0, left_A, torch.ones_like(time_A))


Signal = Callable[[Tensor], Tensor]


def ddim(
    state_AD: Tensor, predicted_AD: Tensor, time_A: Tensor, next_A: Tensor, noise_A: Tensor, clip: bool = False,
    signal: Signal = signal,
) -> Gaussian:  # fmt: skip
    """DDIM's step (arXiv 2010.02502, eq. 12 and 16) from predicted noise; with ``noise`` 1 it is DDPM's. ``clip``: the picture
    that is seen in a state has no values beyond ±1. ``signal``: ᾱ of the times."""
    kept_A, later_A = signal(time_A), signal(next_A)
    spread_A = noise_A * ((1 - later_A) / (1 - kept_A) * (1 - kept_A / later_A)).clamp(min=0).sqrt()
    picture_AD = (state_AD - like((1 - kept_A).sqrt(), state_AD) * predicted_AD) / like(kept_A.sqrt(), state_AD)
    picture_AD = picture_AD.clamp(-1, 1) if clip else picture_AD
    rest_A = (1 - later_A - spread_A.square()).clamp(min=0).sqrt()
    return like(later_A.sqrt(), state_AD) * picture_AD + like(rest_A, state_AD) * predicted_AD, spread_A


KERNELS: dict[str, Callable[..., Gaussian]] = {"flow": flow, "dance": dance, "ddim": ddim}


def log_prob(state_AD: Tensor, mean_AD: Tensor, deviation_A: Tensor) -> Tensor:
    """The Gaussian's log-density of a state, in the mean over its dimensions and not their sum, ``[A]``: the ratio of two is
    then a geometric mean, which moves far less than that of thousands of dimensions together. 0 where the deviation is."""
    noisy_A = deviation_A > 0
    safe_A = torch.where(noisy_A, deviation_A, 1.0)
    square_A = ((state_AD - mean_AD) / like(safe_A, state_AD)).square().flatten(1).mean(1)
    return torch.where(noisy_A, -0.5 * square_A - safe_A.log() - 0.5 * math.log(2 * math.pi), 0.0)


def divergence(mean_AD: Tensor, other_AD: Tensor, deviation_A: Tensor) -> Tensor:
    """The KL of two Gaussians of the same deviation, in the mean over dimensions ``[A]``."""
    return (mean_AD - other_AD).square().flatten(1).mean(1) / (2 * deviation_A.square())


def mixed(
    picture_AD: Tensor, noise_AD: Tensor, time_A: Tensor, prediction: Any, signal: Signal = signal
) -> tuple[Tensor, Tensor]:
    """What a denoiser is trained on: a picture with the noise of a time, and what it is to predict there."""
    if prediction == "velocity":
        time_AD = like(time_A, picture_AD)
        return (1 - time_AD) * picture_AD + time_AD * noise_AD, noise_AD - picture_AD
    kept_AD = like(signal(time_A), picture_AD)
    return kept_AD.sqrt() * picture_AD + (1 - kept_AD).sqrt() * noise_AD, noise_AD
