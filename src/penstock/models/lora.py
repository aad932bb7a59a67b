"""Low-rank adapters through the peft package. Its only home.

The frozen matrix ``W`` of a linear layer stays as it is, and the layer computes ``x W + (alpha / rank) · x A B`` where only
``A`` and ``B`` are trained (Hu et al. 2021, arXiv:2106.09685, equation 3). ``B`` starts at zero, so the model starts as it
was; the reference of a KL term is the same model with its adapters switched off.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from penstock.config.learner import LoRA
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

    The type is NF4 with one float32 scale a block of 64 (QLoRA, Dettmers et al. 2023, arXiv:2305.14314, section 3). A matrix is
    made whole again for each product, so it saves memory and not time.

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


ADAPTER = "default"
"""peft's name of the only adapter."""


def _peft() -> Any:
    try:
        import peft
    except ImportError as error:
        raise ModelError("learner.lora needs the peft package; run: pip install penstock[lora]") from error
    return peft


def linear_layers(network: Any) -> dict[str, nn.Module]:
    """The linear layers of a network by name, heads left out: they may be tied to the embeddings."""
    heads = {id(network.get_output_embeddings()), id(getattr(network, "score", None))}
    kinds = ("Linear", "Conv1D", "Linear4bit")
    return {n: m for n, m in network.named_modules() if type(m).__name__ in kinds and id(m) not in heads}


def add_lora(network: Any, spec: LoRA, seed: int, compute: torch.dtype = torch.float32) -> Any:
    """Freeze a network and put adapters next to its linear layers, in place; gives peft's description of them.

    The first weights are a pure function of ``seed``. Where the spec says so, the frozen linear layers are held in 4 bits and
    compute in ``compute``.

    Raises:
        ModelError: peft is missing, a target is the name of no linear layer, or 4 bits are not possible here.
    """
    layers = linear_layers(network)
    known = sorted({name.rpartition(".")[2] for name in layers})
    if unknown := [name for name in spec.targets if name not in known]:
        raise ModelError(
            f'lora.targets: {type(network).__name__} has no linear layer named "{unknown[0]}"; '
            f"it has {', '.join(known)} (heads are not adapted)"
        )
    targets = sorted(spec.targets or known)
    chosen = [m for n, m in layers.items() if n.rpartition(".")[2] in targets]
    if spec.quantize == "nf4":
        quantize(network, layers, compute)
        network.is_loaded_in_4bit = True  # peft looks here
    config = inject(
        network,
        spec,
        seed,
        target_modules=targets,
        fan_in_fan_out=all(type(m).__name__ == "Conv1D" for m in chosen),
        task_type="SEQ_2_SEQ_LM" if network.config.is_encoder_decoder else "CAUSAL_LM",
    )
    if getattr(network, "score", None) is not None:
        network.score.requires_grad_(True)  # a score head is new, so there is nothing to adapt
    return config


def inject(network: nn.Module, spec: LoRA, seed: int, **fields: Any) -> Any:
    """Freeze a network and put adapters next to the layers that ``fields`` of peft's description name; gives it whole.

    Raises:
        ModelError: peft is missing.
    """
    peft = _peft()
    # The learner has a dropout of its own, from a random stream that checkpoints hold (models/language_policy.py).
    config = peft.LoraConfig(r=spec.rank, lora_alpha=spec.alpha, lora_dropout=0.0, **fields)
    network.requires_grad_(False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        peft.inject_adapter_in_model(config, network, ADAPTER)
    return config


def adapted_layers(network: nn.Module) -> Iterator[tuple[str, Any]]:
    """(name, layer) of every layer with an adapter."""
    yield from ((name, module) for name, module in network.named_modules() if hasattr(module, "lora_A"))


@contextmanager
def adapter_off(network: nn.Module) -> Iterator[None]:
    """Within it the network is what it was before the adapters; for passes without gradient."""
    layers = [layer for _, layer in adapted_layers(network)]
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


@torch.no_grad()
def merged(network: Any, tensors: Mapping[str, Tensor], adapted: bool = True) -> Iterator[tuple[str, Tensor]]:
    """``tensors`` of a network (by its own names) as those of the plain model: adapters added to their matrices, or without
    them (``adapted=False``).

    Matrices that are adapted or in 4 bits are new tensors, made one by one; the others are the network's own.
    """
    layers, small = dict(adapted_layers(network)), dict(quantized_layers(network))
    for name, tensor in tensors.items():
        if ".lora_" in name:
            continue
        owner, _, rest = name.rpartition(".weight")
        if owner in small:
            if rest:
                continue  # scales and tables of the matrix
            tensor = dequantized(small[owner]).to(network.get_input_embeddings().weight.dtype)
        layer = layers.get(owner.removesuffix(".base_layer")) if owner.endswith(".base_layer") else None
        if layer is not None and adapted:
            tensor = tensor + layer.get_delta_weight(ADAPTER)
        yield name.replace(".base_layer.", "."), tensor


def adapter_weights(network: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """(name, tensor) of the adapters alone, by peft's names in files."""
    for name, tensor in network.named_parameters():
        if ".lora_" in name:
            yield f"base_model.model.{name.replace(f'.{ADAPTER}.', '.')}", tensor.detach()


def save_adapter(network: Any, config: Any, folder: Path) -> None:
    """Write the adapter in peft's format, fit for ``PeftModel.from_pretrained(base, folder)``."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {name: tensor.cpu().contiguous() for name, tensor in adapter_weights(network)}
    save_file(state, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config.base_model_name_or_path = getattr(network.config, "_name_or_path", "") or None
    config.inference_mode = True
    config.save_pretrained(str(folder))
    config.inference_mode = False
