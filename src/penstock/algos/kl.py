"""How far the policy is from its reference: estimators, the penalty's spec, and the controllers of its coefficient.

An estimator takes the log-probs of *tokens sampled from the policy* under the policy and under the reference, and gives
nats per token. All of them take numpy and torch arrays alike; this module imports no torch. Over samples of the policy,
``k1``, ``k2`` and ``k3`` estimate ``KL(policy || reference)`` (Schulman 2020, http://joschu.net/blog/kl-approx.html).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np

from penstock.config.run import require
from penstock.config.spec import NotNegative, Positive, spec
from penstock.core.contracts import Coefficients
from penstock.core.errors import TrainingError
from penstock.core.types import Metrics

Estimator = Literal["k1", "k2", "k3", "absolute"]

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are clamped to ±20 before ``exp``, so that one wild token cannot overflow."""

K3_LIMIT = 10.0
"""``k3`` grows exponentially where the reference likes a token far more; it is cut here (and its gradient with it)."""

ERROR_LIMIT = 0.2
"""The adaptive controller's relative error is clipped to ±0.2 (Ziegler et al. 2019, 2.2)."""


def k1(logp: Any, reference_logp: Any) -> Any:
    """``logp - reference_logp``: unbiased, may be negative. Its own gradient has mean zero, so it belongs in the reward."""
    return logp - reference_logp


def k2(logp: Any, reference_logp: Any) -> Any:
    """``(logp - reference_logp)² / 2``: biased, never negative; its gradient is that of the KL in expectation."""
    gap = logp - reference_logp
    return 0.5 * gap * gap


def k3(logp: Any, reference_logp: Any) -> Any:
    """``exp(d) - d - 1`` with ``d = reference_logp - logp``: unbiased (up to the clamps) and never negative.

    Low variance as a value; its own gradient is in expectation that of ``KL(reference || policy)``, the other direction.
    Weighed by the probability ratio it is that of ``KL(policy || reference)`` (DeepSeek-V3.2, arXiv 2512.02556).
    ``d`` is clamped to ±20 and the result to [0, 10]. The sign of ``d`` matters: with ``logp - reference_logp`` in its
    place the expectation is another divergence altogether.
    """
    gap = (reference_logp - logp).clip(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    excess = np.expm1(gap) if isinstance(gap, np.ndarray | np.floating) else gap.expm1()
    return (excess - gap).clip(0.0, K3_LIMIT)


def absolute(logp: Any, reference_logp: Any) -> Any:
    """``|logp - reference_logp|``: a penalty on any drift, no estimate of the KL."""
    return abs(logp - reference_logp)


ESTIMATORS: Mapping[Estimator, Callable[[Any, Any], Any]] = {"k1": k1, "k2": k2, "k3": k3, "absolute": absolute}


def adaptive(coefficient: float, measured: float, samples: float, *, target: float, horizon: float) -> float:
    """Proportional controller in log space (Ziegler et al. 2019, arXiv 1909.08593, 2.2).

    ``coefficient * (1 + clip(measured / target - 1, ±0.2) * samples / horizon)``

    Args:
        coefficient: the coefficient so far.
        measured: mean KL per sequence of the batch, nats.
        samples: sequences of the batch; a larger batch moves the coefficient further.
        target: wanted KL per sequence, nats.
        horizon: sequences over which an error of 1 would double the coefficient.

    Raises:
        TrainingError: a target or horizon that is not positive, a measurement that is not finite, or a batch so large for
            the horizon that the coefficient could change sign.
    """
    if target <= 0 or horizon <= 0:
        raise TrainingError(f"an adaptive KL coefficient needs a positive target and horizon, got {target} and {horizon}")
    if not np.isfinite(measured):
        raise TrainingError(f"the measured KL is {measured}; the policy or its reference gave log-probs that are not finite")
    if ERROR_LIMIT * samples >= horizon:
        raise TrainingError(f"kl.horizon={horizon:g} is too short for {samples:g} samples a batch; use {samples:g} or more")
    error = float(np.clip(measured / target - 1, -ERROR_LIMIT, ERROR_LIMIT))
    return coefficient * (1 + error * samples / horizon)


@spec
class KLPenalty:
    """A penalty that keeps the policy near its reference; ``coefficient=0`` switches it off and needs no reference."""

    place: Literal["reward", "loss"]
    """Subtracted from the reward of every token, or added to the loss."""
    coefficient: NotNegative = 0.0
    """Weight of the penalty; where it starts, if it adapts."""
    estimator: Estimator | Literal["full"] = "k1"
    """From the sampled token alone; or ``full``: the exact KL of the whole next-token distribution, in the loss only."""
    target: NotNegative = 0.0
    """KL per sequence in nats that the coefficient is steered to; 0 keeps the coefficient fixed."""
    horizon: Positive = 10000.0
    """Sequences over which a steered coefficient moves; larger is slower."""
    reweight: bool = False
    """For ``k3`` in the loss: weigh each estimate by the probability ratio. The gradient is then that of the KL to the
    reference, also for samples of an older policy; without, it is that of the KL the other way round."""

    def __post_init__(self) -> None:
        require(
            not self.target or self.coefficient > 0,
            f"kl.target={self.target} steers a coefficient that starts at 0 and would stay there; set kl.coefficient",
        )
        require(
            self.place == "reward" or self.estimator != "k1",
            'kl.estimator="k1" in the loss has a gradient of mean zero; use "k2" or "k3", or kl.place="reward"',
        )
        require(
            self.estimator != "full" or (self.place == "loss" and not self.target),
            'kl.estimator="full" is computed where the loss is, so it cannot be charged to rewards nor steered; set '
            'kl.place="loss" and kl.target=0',
        )
        require(
            not self.reweight or (self.place == "loss" and self.estimator == "k3"),
            'kl.reweight makes the gradient right for kl.place="loss" and kl.estimator="k3" only; set these or reweight=false',
        )

    @property
    def needs(self) -> frozenset[str]:
        """The column that the penalty reads, unless it is off or reads the reference's whole distribution."""
        return frozenset({"reference"} if self.coefficient and self.estimator != "full" else ())

    @property
    def full(self) -> bool:
        """Whether the penalty is on and reads the reference's whole distribution."""
        return bool(self.coefficient) and self.estimator == "full"

    def current(self, coefficients: Coefficients) -> float:
        """The coefficient in force.

        Raises:
            TrainingError: ``coefficients`` did not start from ``initial_coefficients()``; the penalty would be dropped.
        """
        if not self.coefficient:
            return 0.0
        if not coefficients.get("kl", 0.0) > 0:
            raise TrainingError(
                f"kl.coefficient={self.coefficient} but the run's coefficients are {dict(coefficients)}; "
                "start it from the algorithm's initial_coefficients()"
            )
        return coefficients["kl"]

    def charge(self, reward_A: Any, logp_A: Any, reference_logp_A: Any, coefficient: float) -> Any:
        """Rewards less ``coefficient`` times the estimate of each token; unchanged if the penalty is in the loss."""
        if self.place == "loss" or self.estimator == "full" or not coefficient:
            return reward_A
        return reward_A - coefficient * ESTIMATORS[self.estimator](logp_A, reference_logp_A)

    def adapt(self, coefficients: Coefficients, metrics: Metrics) -> Coefficients:
        """The coefficients of the next batch, from ``kl/reference`` and ``batch/rows`` of :func:`label_metrics`.

        Raises:
            TrainingError: the coefficient is steered and the batch was labelled without reference log-probs.
        """
        if not self.target or not metrics.get("batch/rows"):
            return coefficients
        if "kl/reference" not in metrics:
            raise TrainingError('kl.target is set but the metrics hold no "kl/reference"; pass those of label_metrics')
        measured, samples = metrics["kl/reference"], metrics["batch/rows"]
        moved = adaptive(self.current(coefficients), measured, samples, target=self.target, horizon=self.horizon)
        return {**coefficients, "kl": moved}


IN_LOSS = KLPenalty(place="loss", estimator="k3")
"""A penalty in the loss, off until it is given a coefficient."""
