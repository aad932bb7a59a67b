"""Bytes of weights, gradients, optimizer state and cache by arithmetic alone (no torch).

A :class:`Footprint` counts what is in memory whatever the batch; ``passes.py`` counts what a pass takes, and ``processes.py``
says which process holds what.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from penstock.config.learner import LearnerSpec
from penstock.config.optimizers import AdamW, AdamW8bit
from penstock.config.run import Online, Run
from penstock.config.strategies import FSDP2, DeepSpeed
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
        weights += shape.parameters * number if reference and learner.lora is None else 0.0
        weights += reward_models * reward_model(shape, learner)
    weights += shape.tower * number * (1 + reference)
    trained += shape.tower if shape.tower_learns else 0
    learned = trained + extra + critic
    masters = 4.0 * (trained + extra) if number == 2 else 0.0
    return Footprint(weights, masters, 4.0 * learned, MOMENTS[type(learner.optimizer)] * learned)


def reward_model(shape: Shape, learner: LearnerSpec) -> float:
    """Bytes of a reward model of this shape that shares nothing: its trunk and a score, in the learner's type."""
    head = 0 if shape.tied else shape.vocabulary * shape.width
    return float((shape.parameters - head + shape.width) * NUMBER[learner.dtype])


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


def cache(stage: Online, shape: Shape, cache_gb: float = 0.0, on_gpu: bool = False) -> float:
    """Bytes of a generator's cache for answers, at most the engine's ``cache_gb``; where none is set, 4 GB on a processor
    (``engine/memory.py``). Rows grow in steps of 64 positions and have one more for idle writes."""
    positions = -(-stage.sampling.max_new_tokens // 64) * 64 + 1
    number = 0.5 if stage.learner.dtype == "bfloat16" else 1.0
    wished = number * stage.max_running * positions * shape.cache_bytes_per_token
    most = cache_gb * 1e9 or (wished if on_gpu else 4e9)
    return min(wished, most)


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
