"""Algorithms that learn from a replay buffer: the DQN family and SAC. Specs; the equations are in ``q_learning.py``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from penstock.config.spec import Count, NotNegative, Positive, PositiveShare, Share, Whole, require, spec
from penstock.core.algorithm import Algorithm
from penstock.core.contracts import Denominator, LossOutput, Outputs


@dataclass(frozen=True, kw_only=True)
class FromReplay(Algorithm):
    """Base of specs that learn from transitions of older policies."""

    learns_from: ClassVar[Literal["samples", "data", "steps"]] = "steps"
    coupled: ClassVar[bool] = False

    discount: Share = 0.99
    n_steps: Count = 1
    """Rewards in a return, before the value of the state that follows; fewer at the end of a fragment."""
    capacity: Count = 100_000
    """Transitions that are kept; the oldest go."""
    batch: Count = 256
    """Transitions of an optimizer step."""
    warmup: Count = 2_000
    """Transitions before the first optimizer step."""
    target_rate: PositiveShare = 0.005
    """Share of the way that the target network moves at a time; 1 copies it."""
    target_every: Count = 1  # optimizer steps between two moves
    priority: Share = 0.0
    """Transitions are sampled in proportion to their last error to this power (arXiv 1511.05952); 0: alike."""
    correction: Share = 0.4
    """How much of that is corrected by the weight of a transition at first; it rises to 1 at the last batch."""

    def __post_init__(self) -> None:
        require(self.discount < 1, "discount=1 never forgets, and environments may run for ever; set discount=0.99")
        fits = self.batch <= self.warmup <= self.capacity
        require(fits, f"warmup={self.warmup} must lie from batch={self.batch} to capacity={self.capacity}")


@spec
class DQN(FromReplay):
    """Deep Q-learning (Mnih et al. 2015) with what Rainbow adds (Hessel et al. 2018, arXiv 1710.02298): a double target,
    dueling heads, returns of n steps, prioritised replay, noisy layers, and quantiles of returns (QR-DQN)."""

    double: bool = True
    """The trained network chooses the action that the target network values (arXiv 1509.06461)."""
    dueling: bool = True
    """The network has a value of the state and advantages of the options (arXiv 1511.06581)."""
    quantiles: Whole = 0
    """Quantiles of each option's return that are learned (arXiv 1710.10044); their mean decides. 0: the mean alone."""
    noisy: NotNegative = 0.0
    """First deviation of the layers' learned noise (arXiv 1706.10295), 0.5 in Rainbow, which then has no other decisions at
    random: set explore_first and explore_last to 0. Evaluations are without noise. 0: none."""
    explore_first: Share = 1.0
    explore_last: Share = 0.05
    """Share of decisions at random, at first and in the end."""
    explore_batches: Count = 100
    """Training batches from the one to the other, evenly."""

    loss_reads: ClassVar[frozenset[str]] = frozenset({"q"})

    def explored(self, batch: int) -> float:
        """The share in a training batch."""
        return self.explore_first + (self.explore_last - self.explore_first) * min(1.0, batch / self.explore_batches)

    def compute_loss(self, outputs: Outputs, fields: Mapping[str, Any], batch: Any, denominator: Denominator) -> LossOutput:
        from penstock.algos.q_learning import q_loss, quantile_loss

        loss_of, q = quantile_loss if self.quantiles else q_loss, outputs["q"]
        loss = loss_of(q, fields["target"], fields["weight"], denominator=denominator.tokens)
        mean = q.detach().mean() * len(q) / denominator.tokens
        return loss, {"loss": loss.detach(), "q/loss": loss.detach(), "q/mean": mean}


@spec
class SAC(FromReplay):
    """Soft actor-critic (Haarnoja et al. 2018, arXiv 1812.05905): a stochastic policy of bounded continuous decisions, two
    critics, and a temperature that holds the policy's entropy at a target; one backward pass serves all three."""

    temperature: Positive = 1.0
    """Where the temperature starts."""
    entropy: float | None = None
    """What the entropy is steered to, nats; None: minus the numbers of a decision."""

    loss_reads: ClassVar[frozenset[str]] = frozenset({"q", "policy/q", "policy/logp", "policy/numbers", "log_temperature"})

    def compute_loss(self, outputs: Outputs, fields: Mapping[str, Any], batch: Any, denominator: Denominator) -> LossOutput:
        from penstock.algos.q_learning import soft_losses

        q_AQ, logp_A, log_temperature = outputs["q"], outputs["policy/logp"], outputs["log_temperature"]
        entropy = -float(outputs["policy/numbers"]) if self.entropy is None else self.entropy
        critic_A, *others = soft_losses(q_AQ, fields["target"], outputs["policy/q"], logp_A, log_temperature, entropy)
        parts = (critic_A * fields["weight"], *others)  # priorities are about the critics alone
        losses = [part_A.sum() / denominator.tokens for part_A in parts]
        names, share = ("critic/loss", "policy/loss", "temperature/loss"), len(logp_A) / denominator.tokens
        metrics = {name: loss.detach() for name, loss in zip(names, losses, strict=True)}
        metrics |= {"q/mean": q_AQ.detach().mean() * share, "temperature": log_temperature.detach().exp() * share}
        total = losses[0] + losses[1] + losses[2]
        return total, {**metrics, "loss": total.detach(), "entropy": -logp_A.detach().mean() * share}
