"""Losses of what a denoiser predicts at pictures with noise: pure functions of tensors.

``A`` pictures with noise, ``[A, ...]``; a flow has ``x_t = (1 - t) x_0 + t ε`` and velocity ``ε - x_0``. Nothing here averages
over pictures, so any split into micro-batches gives the same sum.
"""

from __future__ import annotations

import torch
from torch import Tensor

LEAST_ERROR = 1e-5
"""Smallest mean error that another is divided by."""


def implicit_velocities(velocity_AD: Tensor, old_AD: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """``v⁺ = (1 - β) v_old + β v``, ``v⁻ = (1 + β) v_old - β v`` (DiffusionNFT: Zheng et al. 2025, arXiv 2509.16117): the
    velocities of good and of bad pictures, if that of all is ``v_old``."""
    return (1 - beta) * old_AD + beta * velocity_AD, (1 + beta) * old_AD - beta * velocity_AD


def normalised_error(velocity_AD: Tensor, wanted_AD: Tensor, time_A: Tensor) -> Tensor:
    """``mean (x̂_0 - x_0)² / sg(mean |x̂_0 - x_0|)`` with ``x̂_0 - x_0 = t (v_wanted - v)``, ``[A]`` (the self-normalised weight
    of arXiv 2509.16117): errors of large and small times count alike."""
    error_AD = time_A.reshape(-1, *[1] * (velocity_AD.ndim - 1)) * (wanted_AD - velocity_AD)
    scale_A = error_AD.detach().abs().flatten(1).mean(1).clamp(min=LEAST_ERROR)
    return error_AD.square().flatten(1).mean(1) / scale_A


def contrasted(
    velocity_AD: Tensor, old_AD: Tensor, wanted_AD: Tensor, time_A: Tensor, optimality_A: Tensor, beta: float
) -> Tensor:
    """``(r L(v⁺) + (1 - r) L(v⁻)) / β``, ``[A]``, L the normalised error (DiffusionNFT: arXiv 2509.16117).

    Args:
        velocity_AD: the trained prediction (has gradient).
        old_AD: that of the policy that drew the pictures; its gradient is not used.
        optimality_A: r, how probably a picture is a good one, from 0 to 1.
        beta: how far the implicit velocities lie from the trained one; 1 trains it directly.
    """
    positive_AD, negative_AD = implicit_velocities(velocity_AD, old_AD.detach(), beta)
    good_A, bad_A = (normalised_error(found_AD, wanted_AD, time_A) for found_AD in (positive_AD, negative_AD))
    return (optimality_A * good_A + (1 - optimality_A) * bad_A) / beta


def squared_distance(velocity_AD: Tensor, other_AD: Tensor) -> Tensor:
    """``mean (v - v_other)²`` over a picture's values, ``[A]``."""
    return torch.square(velocity_AD - other_AD).flatten(1).mean(1)


def preferred(chosen_U: Tensor, rejected_U: Tensor, beta: float) -> Tensor:
    """``-log σ(β/2 · (gain of the chosen - gain of the rejected))``, ``[U]`` (Diffusion-DPO: Wallace et al. 2023, arXiv
    2311.12908, eq. 14): a gain is by how much the reference's mean squared error is larger."""
    return -torch.nn.functional.logsigmoid(0.5 * beta * (chosen_U - rejected_U))
