"""How a learner's model is spread over processes: the registered specs that ``learner.strategy`` takes.

``ranks`` counts processes, one a device; ``span`` of them compute each micro-batch together. What is left is data parallel.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from penstock.config.optimizers import AdamW8bit
from penstock.config.spec import require, spec
from penstock.core.errors import ModelError


@spec
class OneDevice:
    """The whole model, its gradients and its optimizer on one device."""

    ranks: ClassVar[int] = 1
    span: ClassVar[int] = 1


@spec
class DDP:
    """A whole copy on every rank; gradients are summed (data parallel)."""

    ranks: int = 2
    span: ClassVar[int] = 1

    def __post_init__(self) -> None:
        require_ranks(self.ranks)


@spec
class FSDP2:
    """Parameters, gradients and optimizer sharded over the ranks (``fully_shard``; ZeRO-3, arXiv:1910.02054)."""

    ranks: int = 2
    tensor_parallel: int = 1
    """Ranks that every matrix is split over (Megatron, arXiv:1909.08053); they see the same tokens."""
    sequence_parallel: int = 1
    """Ranks that the tokens of a micro-batch are split over, for long contexts (DeepSpeed-Ulysses, arXiv:2309.14509)."""
    reshard: bool = True
    """Give gathered parameters up after the forward pass and gather them again for the backward pass."""
    offload: bool = False
    """Keep shards and optimizer in the memory of the host."""

    def __post_init__(self) -> None:
        require_ranks(self.ranks)
        for name, size in (("tensor_parallel", self.tensor_parallel), ("sequence_parallel", self.sequence_parallel)):
            require(
                size >= 1 and self.ranks % size == 0,
                f"strategy.{name}={size} does not divide strategy.ranks={self.ranks}; set one that does",
            )
        require(
            self.ranks % self.span == 0,
            f"strategy.tensor_parallel={self.tensor_parallel} times strategy.sequence_parallel={self.sequence_parallel} does "
            f"not divide strategy.ranks={self.ranks}; set strategy.ranks={self.span} or a multiple of it",
        )

    @property
    def span(self) -> int:
        return self.tensor_parallel * self.sequence_parallel


@spec
class DeepSpeed:
    """DeepSpeed's ZeRO (arXiv:1910.02054): optimizer and gradients (2), and parameters as well (3), over the ranks."""

    ranks: int = 2
    stage: Literal[2, 3] = 3
    span: ClassVar[int] = 1
    offload: bool = False
    """Keep the optimizer (and with stage 3 the parameters) in the memory of the host."""

    def __post_init__(self) -> None:
        require_ranks(self.ranks)


def refuse(strategy: Any, learner: Any) -> None:
    """Refuse what a learner on several ranks does not compute. ``learner`` is the ``LearnerSpec`` around the strategy.

    Raises:
        SpecError: a combination that is not supported; says what to change.
    """
    name = type(strategy).__name__
    if isinstance(strategy, OneDevice):
        return
    require(learner.dtype != "mixed", f"strategy={name} does not compute in dtype=mixed; set float32 or bfloat16")
    require(
        not (learner.dropout or learner.token_dropout or (learner.lora is not None and learner.lora.dropout)),
        f"strategy={name}: dropout draws one random stream, and ranks would need one each; set dropout, token_dropout and "
        "lora.dropout to 0, or strategy=OneDevice",
    )
    require(
        learner.lora is None or learner.lora.quantize == "none",
        f"strategy={name} does not hold matrices in 4 bits; set lora.quantize=none, or strategy=OneDevice",
    )
    require(
        not learner.router_loss or strategy.span == 1,
        f"router_loss balances the tokens of a whole micro-batch, and strategy={name} splits one; set router_loss=0, or "
        "tensor_parallel and sequence_parallel to 1",
    )
    require(
        not learner.replay_routes or strategy.span == 1,
        f"replay_routes names the experts of all tokens of a micro-batch, and strategy={name} splits one; set "
        "tensor_parallel and sequence_parallel to 1, or replay_routes=false",
    )
    if isinstance(strategy, DDP):
        return
    require(learner.lora is None, f"strategy={name} shards whole matrices, not adapters; set strategy=DDP, or lora=null")
    require(
        learner.unfrozen_layers < 0,
        f"strategy={name} shards models that train whole; set strategy=DDP, or unfrozen_layers=-1",
    )
    require(
        not isinstance(learner.optimizer, AdamW8bit),
        f"strategy={name} cuts tensors where blocks of 8-bit moments would be cut; set optimizer=AdamW, or strategy=DDP",
    )


def refuse_shape(strategy: Any, heads: int, keys: int, vocabulary: int = 0, encoder: bool = False) -> None:
    """Refuse a model whose shape a strategy cannot cut: attention heads stay whole, and each rank has rows of the vocabulary.

    ``keys`` counts key-value heads, ``vocabulary`` tokens (0: not known); ``encoder``: the model has an encoder as well.

    Raises:
        ModelError: says what to set.
    """
    if isinstance(strategy, OneDevice | DDP):
        return
    if encoder:
        raise ModelError(
            f"strategy={type(strategy).__name__} gathers modules when they are called, and an encoder-decoder's are not; "
            "set strategy=DDP"
        )
    if not isinstance(strategy, FSDP2):
        return
    tensor, sequence = strategy.tensor_parallel, strategy.sequence_parallel
    for name, count in (("num_attention_heads", heads), ("num_key_value_heads", keys)):
        if count % tensor:
            raise ModelError(f"strategy.tensor_parallel={tensor} does not divide the model's {name}={count}; set one that does")
    own = heads // tensor
    if own % sequence:
        within = f" after strategy.tensor_parallel={tensor}" if tensor > 1 else ""
        fitting = ", ".join(str(ranks) for ranks in range(1, own + 1) if own % ranks == 0)
        raise ModelError(
            f"strategy.sequence_parallel={sequence} does not divide the model's {own} attention heads{within}; "
            f"set one of {fitting}"
        )
    if vocabulary and -(-vocabulary // tensor) * (tensor - 1) >= vocabulary:
        raise ModelError(f"strategy.tensor_parallel={tensor} leaves a rank without rows of {vocabulary} tokens; set less")


def require_ranks(ranks: int) -> None:
    require(ranks >= 1, f"strategy.ranks={ranks}; at least 1")


STRATEGIES = (OneDevice, DDP, FSDP2, DeepSpeed)
"""What ``learner.strategy`` may be."""
