"""How weights are optimised, and which of them: part of what a run is."""

from __future__ import annotations

from typing import Literal

from penstock.config.optimizers import AdamW
from penstock.config.spec import AnySpec, require, spec
from penstock.config.strategies import STRATEGIES, OneDevice, refuse

Dtype = Literal["float32", "bfloat16", "mixed"]
"""Arithmetic of a model; ``mixed``: matrix products in bfloat16, everything else in float32."""


@spec
class LoRA:
    """Low-rank adapters on frozen matrices (Hu et al. 2021, arXiv:2106.09685), through the peft package."""

    rank: int = 16
    """Rank of the update of each adapted matrix."""
    alpha: float = 32.0
    """The update is scaled by alpha / rank."""
    dropout: float = 0.0
    """Dropout of what goes into the adapters, for offline stages."""
    targets: tuple[str, ...] = ()
    """Names of the modules to adapt, such as ``q_proj``; empty: every linear layer of the blocks."""
    quantize: Literal["none", "nf4"] = "none"
    """Hold the frozen linear layers of the blocks in 4 bits (QLoRA, arXiv:2305.14314), through the bitsandbytes package."""

    def __post_init__(self) -> None:
        require(self.rank >= 1, f"lora.rank={self.rank}; give at least 1")
        require(self.alpha > 0, f"lora.alpha={self.alpha}; give a positive number")
        require(0 <= self.dropout < 1, f"lora.dropout={self.dropout} is outside [0, 1)")


@spec
class LearnerSpec:
    """How weights are optimised."""

    learning_rate: float = 1e-5
    schedule: Literal["constant", "linear", "cosine", "linear_with_min_lr", "cosine_with_min_lr"] = "constant"
    """After warm-up: stay, or decay to 0 after the last step, ``with_min_lr`` to a tenth of the rate."""
    warmup: int = 0
    """Optimizer steps of linear warm-up."""
    clip_norm: float = 1.0
    """Global gradient norm is clipped to this; 0 switches clipping off."""
    token_budget: int = 4096
    """Packed tokens of a micro-batch. Groups are split where the loss does not couple their rows; a longer row, or pair, gets a
    micro-batch of its own, with a warning."""
    share_prefix: bool = True
    """Compute the prompt of a group once for all its samples."""
    dtype: Dtype = "float32"
    """Arithmetic of forward and backward; masters and optimizer stay float32. ``mixed``, for processors that multiply bfloat16
    faster: the products of linear layers in bfloat16, everything else in float32."""
    gradient_checkpointing: bool = False
    critic: Literal["none", "shared", "separate", "branch"] = "none"
    """Value head on the policy's trunk, a critic with a trunk of its own, or one with its own copy of the unfrozen layers."""
    unfrozen_layers: int = -1
    """Train the top so many blocks with the final norm and an untied output head, freeze all below; -1: train everything.
    References and critics then share the frozen part."""
    lora: LoRA | None = None
    """Train adapters instead of the model's own weights; the reference is the model without them."""
    optimizer: AnySpec = AdamW()
    """What turns gradients into steps: AdamW or AdamW8bit (``config/optimizers.py``)."""
    token_dropout: float = 0.0
    """Share of input tokens whose embedding is zeroed while training; keeps reward models from overfitting little data."""
    dropout: float = 0.0
    """Dropout of what attention and feed-forward layers add to the residual stream, for offline stages."""
    router_loss: float = 0.0
    """Weight of the load-balancing loss of a mixture of experts, that of the model's own type over each micro-batch's tokens;
    checkpoints suggest one as ``router_aux_loss_coef``."""
    replay_routes: bool = False
    """Give each token the experts that generated it, weighted by the learner's gates (R3, arXiv:2510.11370): for mixtures of
    experts in online stages with the embedded engine."""
    strategy: AnySpec = OneDevice()
    """How the model is spread over processes: OneDevice, DDP, FSDP2 or DeepSpeed (``docs/backends.md``)."""

    def __post_init__(self) -> None:
        names = ", ".join(kind.__name__ for kind in STRATEGIES)
        require(
            isinstance(self.strategy, STRATEGIES),
            f"learner.strategy={type(self.strategy).__name__} is none; use one of: {names}",
        )
        require(self.learning_rate > 0, f"learning_rate={self.learning_rate}; give a positive rate")
        require(
            isinstance(self.optimizer, AdamW),
            f"learner.optimizer={type(self.optimizer).__name__} is none; use AdamW or AdamW8bit",
        )
        require(self.token_budget >= 16, f"token_budget={self.token_budget} is too small; use at least 16")
        require(self.clip_norm >= 0, f"clip_norm={self.clip_norm} is negative; use 0 to switch clipping off")
        for name in ("token_dropout", "dropout"):
            require(0 <= getattr(self, name) < 1, f"{name}={getattr(self, name)} is outside [0, 1)")
        require(
            not (self.dropout and self.gradient_checkpointing),
            "gradient_checkpointing computes layers a second time, where dropout would differ; set dropout=0 or "
            "gradient_checkpointing=false",
        )
        require(self.router_loss >= 0, f"router_loss={self.router_loss} would unbalance experts; use 0 to switch it off")
        require(
            not self.replay_routes or self.unfrozen_layers < 0,
            "replay_routes: a reference or critic on the frozen blocks would need routes of its own; set unfrozen_layers=-1",
        )
        require(self.unfrozen_layers >= -1, f"unfrozen_layers={self.unfrozen_layers}; use -1 to train all layers")
        require(
            self.critic != "branch" or self.unfrozen_layers >= 0,
            "critic=branch is a copy of the unfrozen layers on the frozen ones; set unfrozen_layers, or critic=separate",
        )
        if self.lora is not None:
            require(self.unfrozen_layers == -1, "lora freezes all of the model's own weights; leave unfrozen_layers=-1")
            require(
                self.critic in ("none", "shared"),
                f"critic={self.critic} trains whole layers besides lora's adapters; use critic=shared, or lora=null",
            )
            require(
                not (self.lora.dropout and self.gradient_checkpointing),
                "gradient_checkpointing computes layers a second time, where dropout would differ; set lora.dropout=0",
            )
        refuse(self.strategy, self)
