"""Proximal policy optimization for language (Schulman et al. 2017; Ziegler et al. 2019; Ouyang et al. 2022)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from penstock.algos.advantages import Array, generalised_advantages, n_step_returns, vtrace, whiten
from penstock.algos.labels import Trajectory, token_weight, trajectories
from penstock.algos.policy import PolicyOptimization, charged
from penstock.config.run import require
from penstock.config.spec import Count, NotNegative, Share, spec
from penstock.core.contracts import Coefficients, Columns, Denominator, LossOutput, Outputs
from penstock.core.types import Group, Row, Unit


@spec
class PPO(PolicyOptimization):
    """PPO with a critic: generalised advantages per token, clipped policy and value losses."""

    per_token: ClassVar[bool] = True

    discount: Share = 1.0
    lam: Share = 0.95
    """0 trusts the critic, 1 trusts the rewards."""
    whiten: bool = True
    """Shift and scale the advantages of a batch to mean 0 and variance 1 over its action tokens."""
    value_clip: NotNegative = 0.2
    """How far a value may usefully move from its estimate at labelling; 0 switches this off."""
    value_coefficient: NotNegative = 0.5
    """Weight of the value loss, next to the policy loss."""
    estimator: Literal["gae", "vtrace", "n-step"] = "gae"
    """Generalised advantages; V-trace, which corrects returns for samples of an older policy (arXiv 1802.01561); or returns of
    ``n_steps`` rewards and the value after them."""
    n_steps: Count = 1
    """Rewards in a return, for ``estimator="n-step"``."""
    vtrace_bounds: tuple[float, float, float] = (1.0, 1.0, 1.0)
    """Largest weights of V-trace: of value errors (ρ), of what is carried back (c, at most ρ), and of the policy gradient."""
    bootstrap: bool = False
    """Whether a sample that was cut at its longest length goes on in the critic's mind: its last value is then that of what
    was cut off. If not, the cut ends the episode, and its reward was given to the text as it is."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.estimator == "gae" or not self.importance_weights,
            'estimator="vtrace" corrects advantages itself; set importance_weights=[] or estimator="gae"',
        )
        require(self.n_steps == 1 or self.estimator == "n-step", f'n_steps={self.n_steps} needs estimator="n-step"')
        rho, carried, policy = self.vtrace_bounds
        require(
            rho >= carried > 0 and policy > 0, f"vtrace_bounds={self.vtrace_bounds} must be (ρ, c, ρ of the policy), ρ >= c > 0"
        )

    @property
    def needs(self) -> frozenset[str]:
        more = {"value"} | ({"proximal"} if self.estimator == "vtrace" else set())
        return super().needs | more | ({"bootstrap"} if self.bootstrap else set())

    @property
    def heads(self) -> Mapping[str, Mapping[str, Any]]:
        return {"value": {}}

    def label(self, groups: Sequence[Group], columns: Columns, coefficients: Coefficients) -> list[Unit]:
        """One unit per group with a valid sample; fields also hold ``return`` and ``old_value`` per action.

        Returns are those before whitening, which scales what the policy sees and not what the critic should predict.
        """
        coefficient = self.kl.current(coefficients)
        kept = self.kept(groups, columns, coefficients)
        estimates = [self._estimate(trajectory, coefficient) for group in kept for trajectory in group]
        advantages = [advantage_A for advantage_A, _ in estimates]
        if self.whiten and advantages:
            advantages = whiten(advantages)
        labels = zip(advantages, [return_A for _, return_A in estimates], strict=True)
        units = [tuple(self._row(trajectory, *next(labels), coefficients) for trajectory in group) for group in kept]
        return self.objective.choose(units)

    def kept(self, groups: Sequence[Group], columns: Columns, coefficients: Coefficients) -> list[list[Trajectory]]:
        """The valid samples of each group, with the rewards that advantages are made of."""
        return trajectories(groups, columns, needs=self.needs)

    def _estimate(self, trajectory: Trajectory, coefficient: float) -> tuple[Array, Array]:
        t, end = trajectory, trajectory.bootstrap
        reward_A = charged(self.kl, t, coefficient)
        if self.estimator == "n-step":
            return n_step_returns(reward_A, t.value_A, self.discount, self.n_steps, bootstrap=end)
        if self.estimator == "gae":
            return generalised_advantages(reward_A, t.value_A, self.discount, self.lam, bootstrap=end)
        rho, carried, policy = self.vtrace_bounds
        bounds: dict[str, Any] = {"bounds": (rho, carried), "policy_bound": policy}
        return vtrace(reward_A, t.value_A, t.proximal_logp_A - t.logp_A, self.discount, lam=self.lam, bootstrap=end, **bounds)

    def _row(self, trajectory: Trajectory, advantage_A: Array, return_A: Array, coefficients: Coefficients) -> Row:
        weight, labels = token_weight("token", len(trajectory)), {"old_value": trajectory.value_A, "return": return_A}
        return self.row(trajectory, advantage_A, weight, coefficients, **labels)

    @property
    def loss_reads(self) -> frozenset[str]:
        return super().loss_reads | {"value"}

    def compute_loss(self, outputs: Outputs, fields: Mapping[str, Any], batch: Any, denominator: Denominator) -> LossOutput:
        """``policy + value_coefficient * value``, each a mean over the batch's action tokens; also reads the per-action fields
        ``return`` and ``old_value``."""
        from penstock.algos import losses

        loss, metrics = super().compute_loss(outputs, fields, batch, denominator)
        value_A, old_value_A, return_A = outputs["value"], fields["old_value"], fields["return"]
        given: dict[str, Any] = {"clip": self.value_clip or None, "denominator": denominator.tokens}
        value_loss = losses.clipped_value_loss(value_A, old_value_A, return_A, fields["weight"], **given)
        total = loss + self.value_coefficient * value_loss
        moved = losses.value_metrics(value_A, old_value_A, return_A, **given)
        return total, {**metrics, **moved, "value/loss": value_loss.detach(), "loss": total.detach()}
