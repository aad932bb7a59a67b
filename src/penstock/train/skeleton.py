"""A model's shape without its weights, and the weights as they come from rank 0, part by part."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal

import torch
import transformers
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from penstock.config.learner import LearnerSpec
from penstock.core.errors import ModelError
from penstock.models.attention import quiet_transformers
from penstock.models.encoder_decoder import faced
from penstock.models.language_model import Head, LanguageModel
from penstock.models.language_policy import LanguagePolicy
from penstock.models.restrict import prepare
from penstock.train.world import World


@dataclass(frozen=True)
class Shape:
    """What a rank needs to build a model of the same shape: plain values."""

    network: str
    config: str
    values: str
    """The configuration as JSON."""
    number: Literal["float32", "float64"]
    """Type of the weights on ranks whatever is computed in; float64 where the model itself is."""
    head: Head
    end: int
    pad: int
    critic: str
    temperature: float
    """That of the policy's distribution."""
    heads: tuple[tuple[str, str], ...]
    """Name of each head that the algorithm brought, and its settings as JSON."""
    tensors: tuple[tuple[str, tuple[int, ...]], ...]
    """Name and shape of every parameter, in order."""
    encoder: bool
    """Whether it is an encoder-decoder."""


def shape_of(policy: LanguagePolicy) -> Shape:
    """The shape of a prepared policy. Raises ModelError where its model is none of the transformers package."""
    model = policy.model
    network, config = type(model.network), model.config
    if getattr(transformers, network.__name__, None) is not network:
        raise ModelError(f"{network.__name__} is no class of transformers, so other ranks cannot build it; use OneDevice")
    heads: Any = model.heads.items()
    return Shape(
        network=network.__name__,
        config=type(config).__name__,
        values=config.to_json_string(use_diff=False),
        number="float64" if model.dtype == torch.float64 else "float32",
        head=model.head,
        end=model.text.end,
        pad=model.text.pad,
        critic=model.critic,
        temperature=policy.temperature,
        heads=tuple((name, json.dumps(head.settings)) for name, head in heads),
        tensors=tuple((name, tuple(parameter.shape)) for name, parameter in model.named_parameters()),
        encoder=config.is_encoder_decoder,
    )


def build(shape: Shape, spec: LearnerSpec, seed: int) -> LanguageModel:
    """A prepared model of a shape whose network has no memory yet (torch's meta device).

    Raises:
        ModelError: it comes out with other parameters.
    """
    config = getattr(transformers, shape.config).from_dict(json.loads(shape.values))
    with quiet_transformers(), torch.device("meta"):
        network = getattr(transformers, shape.network)._from_config(config, dtype=getattr(torch, shape.number))
    text: Any = SimpleNamespace(end=shape.end, pad=shape.pad)
    model = faced(network.eval(), text, shape.head)
    model.add_heads({name: json.loads(settings) for name, settings in shape.heads})
    prepare(model, spec, seed)
    if shape.critic != "none" and model.critic == "none":
        model.add_critic(shape.critic)  # type: ignore[arg-type]
    made = tuple((name, tuple(parameter.shape)) for name, parameter in model.named_parameters())
    if made != shape.tensors:
        odd = sorted({name for name, _ in set(made) ^ set(shape.tensors)})
        raise ModelError(f"{shape.network} cannot be built again on another rank: {', '.join(odd[:3])} differ; use OneDevice")
    return model


def materialise(module: nn.Module, device: torch.device) -> None:
    """Give memory (of any content) to what is on the meta device; tied tensors stay tied. Moves the rest to ``device``, but for
    what is sharded, which has its place."""
    made: dict[int, Any] = {}

    def placed(tensor: Tensor) -> Any:
        if id(tensor) not in made:
            new = torch.empty_like(tensor, device=device) if tensor.is_meta else tensor.to(device)
            parameter = isinstance(tensor, nn.Parameter)
            made[id(tensor)] = nn.Parameter(new, tensor.requires_grad) if parameter else new
        return made[id(tensor)]

    for part in module.modules():
        for held in (part._parameters, part._buffers):
            for name, tensor in held.items():
                if tensor is not None and not isinstance(tensor, DTensor) and (tensor.is_meta or tensor.device != device):
                    held[name] = placed(tensor)
        for name, value in vars(part).items():
            if isinstance(value, Tensor) and value.is_meta:  # transformers keeps a second reference to some buffers
                setattr(part, name, placed(value))


def hollow(module: nn.Module) -> None:
    """Give up the memory of a module's parameters, which move to the meta device; tied ones stay tied, buffers stay."""
    made: dict[int, nn.Parameter] = {}
    for part in module.modules():
        for name, held in part._parameters.items():
            if held is not None:
                empty = nn.Parameter(torch.empty_like(held, device="meta"), held.requires_grad)
                part._parameters[name] = made.setdefault(id(held), empty)


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name, tied ones once, in an order that all ranks share."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


@torch.no_grad()
def fill(wanted: Mapping[str, Tensor], source: Mapping[str, Tensor] | None, world: World) -> None:
    """Write rank 0's tensors (``source``, on rank 0 only) into those of the same names on every rank, one by one."""
    for name, tensor in wanted.items():
        if source is not None and source[name] is not tensor:
            tensor.copy_(source[name])
        world.from_first(tensor.data)
