"""Bytes of weights, gradients, optimizer state, activations and cache by arithmetic alone (no torch).

A :class:`Footprint` counts what is in memory whatever the batch; :func:`stage_memory` adds what depends on it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from penstock.config.learner import LearnerSpec
from penstock.config.optimizers import AdamW, AdamW8bit
from penstock.config.run import Offline, Online, Run
from penstock.config.strategies import DDP, FSDP2, DeepSpeed, OneDevice
from penstock.models.presets import Shape

MOMENTS = {AdamW: 8.0, AdamW8bit: 2 * (1 + 4 / 256)}
"""Bytes of both moments of one parameter; in 8 bits a block of 256 has a float32 scale."""

NUMBER = {"float32": 4, "bfloat16": 2, "mixed": 6}
"""Bytes of a parameter by arithmetic; ``mixed`` holds it in both types."""

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


def footprint(shape: Shape, learner: LearnerSpec, *, reference: bool = False, reward_models: int = 0) -> Footprint:
    """Bytes of a policy with the critic of ``learner``, a reference if there is one, and reward models of its shape.

    With ``unfrozen_layers`` the reference and the reward models share the frozen part (reward models that were trained from
    the same model with as many layers or fewer). Otherwise each is held by itself, in the learner's type. With adapters the
    reference is the policy without them.
    """
    number = NUMBER[learner.dtype]
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
        weights += (shape.parameters * number if reference and learner.lora is None else 0.0) + (
            reward_models * (trunk + shape.width) * number
        )
    weights += shape.tower * number * (1 + reference)
    trained += shape.tower if shape.tower_learns else 0
    learned = trained + extra + critic
    masters = 4.0 * (trained + extra) if number == 2 else 0.0
    return Footprint(weights, masters, 4.0 * learned, MOMENTS[type(learner.optimizer)] * learned)


def rank_footprint(shape: Shape, learner: LearnerSpec) -> Footprint:
    """Bytes that each rank of a learner holds while it trains: its share, and what it gathers to compute one block.

    What is not in blocks (embeddings, head) stays gathered through a pass, or its rows where tensor parallelism splits it.
    Where parameters are sharded, rank 0 holds another copy of the weights, from which it generates, evaluates and saves.
    """
    own, strategy = footprint(shape, learner), learner.strategy
    if not isinstance(strategy, FSDP2 | DeepSpeed):
        return own
    number, ranks = NUMBER[learner.dtype], strategy.ranks
    outside = shape.parameters - shape.layers * shape.layer_parameters
    shares = Footprint(0.0, own.gradients / ranks, own.gradients / ranks, own.moments / ranks)
    if isinstance(strategy, FSDP2):  # shards are float32: they are masters and stored weights at once
        gathered = ((1 if strategy.reshard else shape.layers) * shape.layer_parameters + outside) / strategy.tensor_parallel
        return dataclasses.replace(shares, weights=float(number * gathered))
    if strategy.stage == 2:
        return dataclasses.replace(shares, weights=float(number * shape.parameters))
    return dataclasses.replace(shares, weights=number * (shape.parameters / ranks + shape.layer_parameters + outside))


Taken = tuple[str, float, str]
"""What takes memory, its bytes, and how they are said."""


def stage_memory(stage: Online | Offline, shape: Shape, cache_gb: float = 0.0) -> list[Taken]:
    """What weights, optimizer, reference, activations and cache of a stage take, what each rank holds where there are several,
    and the total. Activations are a rule of thumb."""
    learner, reference = stage.learner, stage.algorithm.reference
    own = footprint(shape, learner)
    referred = footprint(shape, learner, reference=reference).weights - own.weights
    sharing = " (the rest is the policy's)" if learner.lora is not None or learner.unfrozen_layers >= 0 else ""
    bits = "8 bits" if isinstance(learner.optimizer, AdamW8bit) else "float32"
    optimizer = own.gradients + own.moments
    kept = 34 * shape.width + 6 * shape.hidden
    activations = float(learner.token_budget * max(shape.layers, shape.encoder_layers) * kept)
    activations += min(learner.token_budget * shape.vocabulary, 1 << 24) * 4 * 3  # logits
    found = [
        ("weights", own.weights + own.masters, size_text(own.weights + own.masters)),
        ("optimizer", optimizer, f"{size_text(optimizer)} (gradients, and two moments in {bits})"),
        ("reference", referred, size_text(referred) + sharing if referred else "none"),
        ("activations", activations, f"about {size_text(activations)} at a full micro-batch"),
    ]
    if isinstance(stage, Online):
        held = cache(stage, shape, cache_gb)
        found.append(("cache", held, f"{size_text(held)} for {stage.max_running} rows, and the prompts once each"))
    total = sum(count for _, count, _ in found)
    return [*found, *rank_memory(learner, shape, activations), ("total", total, f"about {size_text(total)}")]


def rank_memory(learner: LearnerSpec, shape: Shape, activations: float) -> list[Taken]:
    """What each rank of a learner holds, and what rank 0 holds as well; nothing where there is one device."""
    strategy = learner.strategy
    if isinstance(strategy, OneDevice):
        return []
    each, shared = rank_footprint(shape, learner), strategy.sequence_parallel if isinstance(strategy, FSDP2) else 1
    held, optimizer = each.total + activations / shared, size_text(each.masters + each.gradients + each.moments)
    text = f"about {size_text(held)}: {optimizer} of masters, gradients and moments, {size_text(each.weights)} of weights"
    found = [(f"each of {strategy.ranks} ranks", held, text)]
    if not isinstance(strategy, DDP):
        copy = footprint(shape, learner).weights
        found.append(("rank 0 as well", copy, f"{size_text(copy)}, a copy to generate, evaluate and save from"))
    return found


def cache(stage: Online, shape: Shape, cache_gb: float = 0.0) -> float:
    """Bytes of a generator's cache for answers, at most the engine's ``cache_gb`` where one is set."""
    wished = float(stage.max_running * stage.sampling.max_new_tokens * shape.cache_bytes_per_token)
    return min(wished, cache_gb * 1e9 or wished)


def size_text(count: float) -> str:
    """Bytes in a unit that suits them."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit in ("B", "kB") else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


TOKEN_BYTES = 13
"""Of a token on its way: id and version in 4 bytes, log-prob in 4, a flag in 1."""


def moved(stage: Online, run: Run, weights: float) -> list[tuple[str, float, str]]:
    """(what, bytes, which way) between the processes of a run in one step of a stage whose weights take ``weights`` bytes."""
    counts, answers = run.roles, stage.batch * stage.samples * stage.sampling.max_new_tokens * TOKEN_BYTES
    ways = 3 if not counts.references else 4
    readers = "the reward workers" + (", the references" if counts.references else "")
    return [
        ("weights", weights * counts.generators, f"from the learner to {counts.generators} generator(s) by {counts.channel}"),
        (
            "answers",
            float(answers * ways),
            f"at most: to the hub, and from it to {readers} and the learner; prompts with them",
        ),
    ]
