"""What turns gradients into steps: the registered specs that ``learner.optimizer`` takes."""

from __future__ import annotations

from penstock.config.spec import require, spec


@spec
class AdamW:
    """AdamW (Loshchilov and Hutter 2017, arXiv:1711.05101) with moments in float32."""

    betas: tuple[float, float] = (0.9, 0.95)
    epsilon: float = 1e-8
    """Keeps it from dividing by nothing. (The range of a clipped loss is ``algorithm.clip``.)"""
    weight_decay: float = 0.0
    """Decoupled decay of matrices; biases, norms and embeddings are left alone."""

    def __post_init__(self) -> None:
        require(
            0 <= self.epsilon <= 0.01,
            f"epsilon={self.epsilon} is AdamW's, which is next to nothing; the range of a clipped loss is algorithm.clip",
        )


@spec
class AdamW8bit(AdamW):
    """AdamW with moments in 8 bits (blockwise, Dettmers et al. 2021, arXiv:2110.02861), through the torchao package."""
