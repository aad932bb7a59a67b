"""How the networks of published pipelines are called: each class has arguments of its own for the same state, time and prompt.

``network`` is a :class:`~penstock.models.diffusion.published.Network`; what it is given of prompts comes from its encoders.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from penstock.config.denoising import Prediction

Conditions = dict[str, Tensor]
"""What a network is given of prompts, ``[A, ...]`` each, by its argument."""


def unet(network: Any, state_AD: Tensor, time_A: Tensor, given: Conditions) -> Tensor:
    more: dict[str, Any] = {}
    if "pooled" in given:
        height, width = (network.frozen.scale * size for size in state_AD.shape[-2:])
        ids = torch.tensor([height, width, 0, 0, height, width], dtype=torch.float32, device=state_AD.device)
        more = {"added_cond_kwargs": {"text_embeds": given["pooled"], "time_ids": ids.expand(len(state_AD), -1)}}
    step_A = (network.frozen.index(time_A) - 1).clamp(min=0)
    found: Tensor = network.inner(state_AD, step_A, encoder_hidden_states=given["read"], return_dict=False, **more)[0]
    return found


def sd3(network: Any, state_AD: Tensor, time_A: Tensor, given: Conditions) -> Tensor:
    found: Tensor = network.inner(
        hidden_states=state_AD,
        timestep=time_A * network.frozen.training_steps,
        encoder_hidden_states=given["read"],
        pooled_projections=given["pooled"],
        return_dict=False,
    )[0]
    return found


def flux(network: Any, state_AD: Tensor, time_A: Tensor, given: Conditions) -> Tensor:
    """Patches of 2 x 2 latents in a row, each with its place."""
    count, channels, high, wide = state_AD.shape[0], state_AD.shape[1], state_AD.shape[2] // 2, state_AD.shape[3] // 2
    packed_APC = state_AD.reshape(count, channels, high, 2, wide, 2).permute(0, 2, 4, 1, 3, 5)
    rows, columns = torch.meshgrid(torch.arange(high), torch.arange(wide), indexing="ij")
    place_P3 = torch.stack([torch.zeros_like(rows), rows, columns], -1).reshape(-1, 3).to(state_AD)
    guided = network.inner.config.guidance_embeds
    out_APC: Tensor = network.inner(
        hidden_states=packed_APC.reshape(count, high * wide, channels * 4),
        timestep=time_A,
        guidance=torch.full_like(time_A, network.guidance) if guided else None,
        encoder_hidden_states=given["read"],
        pooled_projections=given["pooled"],
        txt_ids=state_AD.new_zeros(given["read"].shape[1], 3),
        img_ids=place_P3,
        return_dict=False,
    )[0]
    return out_APC.reshape(count, high, wide, channels, 2, 2).permute(0, 3, 1, 4, 2, 5).reshape(state_AD.shape)


@dataclass(frozen=True)
class Family:
    """How pipelines of a class are called."""

    component: str
    """The name of the network that is trained."""
    prediction: Prediction
    predict: Callable[[Any, Tensor, Tensor, Conditions], Tensor]
    prompts: tuple[str, ...]
    """Arguments of ``encode_prompt`` besides the prompt, which they repeat."""
    two_passes: bool = True
    """Whether guidance is classifier-free, and not an input of the network."""
    patch: int = 1
    """Latents on a side of what the network reads as one."""


FAMILIES = {
    "StableDiffusionPipeline": Family("unet", "noise", unet, ()),
    "StableDiffusionXLPipeline": Family("unet", "noise", unet, ("prompt_2",)),
    "StableDiffusion3Pipeline": Family("transformer", "velocity", sd3, ("prompt_2", "prompt_3"), patch=2),
    "FluxPipeline": Family("transformer", "velocity", flux, ("prompt_2",), two_passes=False, patch=2),
}
