"""Frozen matrices in 4 bits through the bitsandbytes package. Its only home.

The type is NF4 with one float32 scale a block of 64 (QLoRA, Dettmers et al. 2023, arXiv:2305.14314, section 3). A matrix is
made whole again for each product, in the compute type, so it saves memory and not time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from penstock.core.errors import ModelError


def _bitsandbytes() -> Any:
    try:
        import bitsandbytes
    except Exception as error:  # besides a missing package: a library that does not fit the machine
        raise ModelError(
            f"lora.quantize=nf4 needs the bitsandbytes package, which does not load here ({error}); "
            f"run: pip install penstock[qlora], or set lora.quantize=none"
        ) from error
    return bitsandbytes


@torch.no_grad()
def quantize(network: nn.Module, layers: Mapping[str, nn.Module], compute: torch.dtype) -> None:
    """Replace linear layers of a network by frozen ones that hold their matrix in 4 bits and compute in ``compute``.

    Raises:
        ModelError: bitsandbytes is missing or does not run here, or a layer is not a plain linear one.
    """
    package = _bitsandbytes()
    for name, layer in layers.items():
        if type(layer) is not nn.Linear:
            raise ModelError(
                f"lora.quantize=nf4: {type(network).__name__} has {name} as {type(layer).__name__}, which cannot be held in 4 "
                f"bits; set lora.quantize=none"
            )
        device = layer.weight.device
        made = package.nn.Linear4bit(
            layer.in_features, layer.out_features, layer.bias is not None, compute, quant_type="nf4", device="meta"
        )
        made.weight = package.nn.Params4bit(
            layer.weight.detach().clone(), requires_grad=False, quant_type="nf4", compress_statistics=False, module=made
        )
        made.bias = layer.bias
        # On some CPUs the package repacks a matrix at its first pass without gradient, for a product that has no backward pass:
        # gradients after the first generated token would be silently wrong.
        made.support_avx512bf16_for_cpu = False
        try:
            made = made.to(device)  # this is what quantizes
        except Exception as error:
            raise ModelError(
                f"lora.quantize=nf4: bitsandbytes cannot quantize on {device} here ({error}); set lora.quantize=none"
            ) from error
        parent, _, own = name.rpartition(".")
        setattr(network.get_submodule(parent), own, made)


def quantized_layers(network: nn.Module) -> Iterator[tuple[str, Any]]:
    """(name, layer) of every layer whose matrix is in 4 bits."""
    yield from (
        (n, m)
        for n, m in network.named_modules()
        if hasattr(getattr(m, "weight", None), "quant_state") and not hasattr(m, "lora_A")
    )


def dequantized(layer: Any) -> Tensor:
    """The matrix of a layer, made whole again from its 4 bits."""
    return _bitsandbytes().functional.dequantize_4bit(layer.weight.data, layer.weight.quant_state)
