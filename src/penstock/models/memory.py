"""Bytes of weights, gradients and optimizer state by arithmetic alone (no torch): what sharing, adapters and 8 bits save.

Activations and caches are not counted: they depend on the batch, not on how many models stand in memory.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from penstock.config.learner import LearnerSpec
from penstock.config.strategies import FSDP2, DeepSpeed
from penstock.models.presets import Shape

MOMENTS = {"adamw": 8.0, "adamw8bit": 2 * (1 + 4 / 256)}
"""Bytes of both moments of one parameter; in 8 bits a block of 256 has a float32 scale."""

NF4 = 0.5 + 4 / 64
"""Bytes of one parameter in 4 bits: a block of 64 has a float32 scale."""


@dataclass(frozen=True)
class Footprint:
    """Bytes held by a policy, its critic, its reference and its reward models."""

    weights: float
    """Of all models, each tensor once."""
    masters: float
    """Float32 copies of what trains in bfloat16."""
    gradients: float
    moments: float

    @property
    def total(self) -> float:
        return self.weights + self.masters + self.gradients + self.moments


def trunk_parameters(shape: Shape, layers: int) -> int:
    """Parameters of the top ``layers`` blocks and the final norm."""
    return layers * shape.layer_parameters + shape.width


def trained_parameters(shape: Shape, learner: LearnerSpec) -> int:
    """Parameters of the policy that get gradients: all, the top with an untied head, or its adapters."""
    if learner.lora is not None:
        return adapter_parameters(shape, learner.lora.rank, learner.lora.targets)
    if learner.unfrozen_layers < 0:
        return shape.parameters
    head = 0 if shape.tied else shape.vocabulary * shape.width
    return trunk_parameters(shape, learner.unfrozen_layers) + head


def adapter_parameters(shape: Shape, rank: int, targets: tuple[str, ...] = ()) -> int:
    """``rank · (in + out)`` for each adapted matrix of a Llama-like block."""
    head = shape.head_width or shape.width // shape.heads
    queries, keys = shape.heads * head, shape.key_value_heads * head
    ends = {
        "q_proj": shape.width + queries, "k_proj": shape.width + keys, "v_proj": shape.width + keys,
        "o_proj": queries + shape.width, "gate_proj": shape.width + shape.hidden, "up_proj": shape.width + shape.hidden,
        "down_proj": shape.hidden + shape.width,
    }  # fmt: skip
    return shape.layers * rank * sum(size for name, size in ends.items() if name in (targets or ends))


def footprint(
    shape: Shape, learner: LearnerSpec, *, reference: bool = False, reward_models: int = 0, frozen: int = 4
) -> Footprint:
    """Bytes of a policy with the critic of ``learner``, a reference if there is one, and reward models of its shape.

    With ``unfrozen_layers`` the reference and the reward models share the frozen part (reward models that were trained from
    the same model with as many layers or fewer). Otherwise each stands by itself, with ``frozen`` bytes a parameter. With
    adapters the reference is the policy without them.
    """
    number = 2 if learner.dtype == "bfloat16" else 4
    trained, critic = trained_parameters(shape, learner), shape.width + 1 if learner.critic != "none" else 0
    trunk = shape.parameters - (0 if shape.tied else shape.vocabulary * shape.width)  # all but an output head of its own
    weights = float(shape.parameters * number)
    if learner.lora is not None:
        matrices = shape.layers * (shape.layer_parameters - 2 * shape.width)
        weights += trained * number - (matrices * (number - NF4) if learner.lora.quantize == "nf4" else 0)
    extra = 0  # of the critic's own trunk
    if learner.critic == "separate":
        extra = trunk
    elif learner.critic == "branch":
        extra = trunk_parameters(shape, learner.unfrozen_layers)
    weights += extra * number + critic * 4
    if learner.unfrozen_layers >= 0:
        top = trunk_parameters(shape, learner.unfrozen_layers)
        weights += (trained * number if reference else 0) + reward_models * (top + shape.width) * number
    else:
        weights += (shape.parameters * frozen if reference and learner.lora is None else 0.0) + (
            reward_models * (trunk + shape.width) * frozen
        )
    learned = trained + extra + critic
    masters = 4.0 * (trained + extra) if number == 2 else 0.0
    return Footprint(weights, masters, 4.0 * learned, MOMENTS[learner.optimizer] * learned)


def rank_footprint(shape: Shape, learner: LearnerSpec) -> Footprint:
    """Bytes that each rank of a learner holds while it trains: its share, and what it gathers to compute one block.

    What is not in blocks (embeddings, head) stays gathered through a pass, or its rows where tensor parallelism splits it.
    Where parameters are sharded, rank 0 holds a copy of the weights beside, from which it generates, evaluates and saves.
    """
    own, strategy = footprint(shape, learner), learner.strategy
    if not isinstance(strategy, FSDP2 | DeepSpeed):
        return own
    number, ranks = 2 if learner.dtype == "bfloat16" else 4, strategy.ranks
    outside = shape.parameters - shape.layers * shape.layer_parameters
    shares = Footprint(0.0, own.gradients / ranks, own.gradients / ranks, own.moments / ranks)
    if isinstance(strategy, FSDP2):  # shards are float32: they are masters and stored weights at once
        gathered = ((1 if strategy.reshard else shape.layers) * shape.layer_parameters + outside) / strategy.tensor_parallel
        return dataclasses.replace(shares, weights=float(number * gathered))
    if strategy.stage == 2:
        return dataclasses.replace(shares, weights=float(number * shape.parameters))
    return dataclasses.replace(shares, weights=number * (shape.parameters / ranks + shape.layer_parameters + outside))
