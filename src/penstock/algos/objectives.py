"""What an online algorithm raises: specs that choose a surrogate. Importing this module imports no torch.

An algorithm says how good each action was (its advantages); an objective says what is made of that and of how far the
policy has moved since. Two choices are apart from each other: the interval is the algorithm's ``clip``, and what the ratio
is of (a token or a sequence) is the objective's. ``surrogate(inputs)`` gives the gain of each action and which
gradients were cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from penstock.algos.covariance import covariances, highest, within_band
from penstock.config.run import require
from penstock.config.spec import NotNegative, Positive, PositiveShare, spec
from penstock.core.columns import Column, register_column
from penstock.core.types import Unit, with_field

register_column("transition", Column("learner", "transition"))


@dataclass(frozen=True)
class SurrogateInputs:
    """What an objective reads of a micro-batch; tensors over its actions ``[A]``."""

    logp_A: Any
    """Log-probs under the policy that is trained (has gradient)."""
    gap_A: Any
    """Those less the log-probs under the policy that the ratio starts from; clamped, 0 where the weight is 0."""
    advantage_A: Any
    weight_A: Any
    row_A: Any
    """The row of each action."""
    fields: Mapping[str, Any]
    low: float
    high: float
    """The ratio may lie in (1 - low, 1 + high); 1 and infinity if the algorithm has no ``clip``."""
    outputs: Mapping[str, Any] = field(default_factory=dict)
    """All that was computed of them."""


def maths() -> Any:
    """The functions of ``surrogates.py``, which imports torch and so waits for the first call."""
    from penstock.algos import surrogates

    return surrogates


class Objective:
    """Base of objectives: what they may say about themselves."""

    uses_clip: ClassVar[bool] = True
    """Whether the algorithm's ``clip`` has a meaning here."""
    bounded: ClassVar[bool] = False
    """Whether stale samples are harmless without a ``clip``."""
    has_ratio: ClassVar[bool] = True
    """Whether it accounts for how far the policy has moved since the update began."""
    needs: ClassVar[frozenset[str]] = frozenset()
    """Columns that it reads, as fields of rows."""
    reads: ClassVar[frozenset[str]] = frozenset()
    """Outputs that it reads next to log-probs."""
    denoises: ClassVar[bool] = False
    """Whether it is for diffusion policies alone."""

    @property
    def one_gain(self) -> bool:
        """Whether all tokens of a sample gain the same number, that of the sample."""
        return False

    @property
    def one_advantage(self) -> bool:
        """Whether all tokens of a sample must share one advantage."""
        return self.one_gain

    @property
    def geometric(self) -> bool:
        """Whether the ratio is the geometric mean over an answer, which moves far less than that of a token."""
        return False

    def choose(self, units: Sequence[Unit]) -> list[Unit]:
        """Fields that depend on the whole batch are added here, where the whole batch is seen."""
        return list(units)


@spec
class ClippedRatio(Objective):
    """PPO's clipped surrogate (Schulman et al. 2017); GSPO (arXiv 2507.18071) with the ratio of a sequence.

    Clip-higher (DAPO, arXiv 2503.14476) is ``clip=(0.2, 0.28)`` of the algorithm; ``clip=None`` leaves the ratio free.
    """

    level: Literal["token", "sequence", "sequence-token", "product"] = "token"
    """The ratio of a token, the geometric mean over its sequence (GSPO), that with the token's gradient (GSPO-token), or the
    product over its sequence, for which a whole answer is one action (RLOO, arXiv 2402.14740)."""
    dual: float = 0.0
    """Largest ratio that counts where the advantage is negative (dual clip, arXiv 1912.09729; 3 is usual); 0: none."""

    def __post_init__(self) -> None:
        require(self.dual == 0 or self.dual > 1, f"objective.dual={self.dual} must be above 1, or 0 to switch it off")

    @property
    def one_gain(self) -> bool:
        return self.level in ("sequence", "product")

    @property
    def geometric(self) -> bool:
        return self.level in ("sequence", "sequence-token")

    def surrogate(self, inputs: SurrogateInputs) -> Any:
        if self.level == "token":
            ratio_A = inputs.gap_A.exp()
        else:
            ratio = {"sequence": maths().sequence_ratio, "product": maths().product_ratio}
            ratio_A = ratio.get(self.level, maths().sequence_token_ratio)(inputs.gap_A, inputs.weight_A, inputs.row_A)
        return maths().clipped(ratio_A, inputs.advantage_A, low=inputs.low, high=inputs.high, dual=self.dual)


@spec
class PolicyGradient(Objective):
    """The plain policy gradient ``A * logp`` (Williams 1992). With stale samples add ``importance_weights``."""

    uses_clip: ClassVar[bool] = False
    has_ratio: ClassVar[bool] = False

    def surrogate(self, inputs: SurrogateInputs) -> Any:
        return maths().policy_gradient(inputs.logp_A, inputs.advantage_A)


@spec
class CISPO(Objective):
    """The policy gradient under an importance weight that is clipped (MiniMax 2025, arXiv 2506.13585): no token is silenced.

    The paper clips above only: ``clip=(1.0, high)``. PipelineRL's weight ``min(ratio, 5)`` is ``clip=(1.0, 4.0)``.
    """

    def surrogate(self, inputs: SurrogateInputs) -> Any:
        ratio_A = inputs.gap_A.exp()
        return maths().clipped_weight(ratio_A, inputs.logp_A, inputs.advantage_A, low=inputs.low, high=inputs.high)


@spec
class GMPO(Objective):
    """The geometric mean of a sequence's ratios, each clipped by itself (Zhao et al. 2025, arXiv 2507.20673).

    The paper's interval ``(e^-0.4, e^0.4)`` is ``clip=(0.33, 0.49)``, its mean ``aggregate="sequence"``.
    """

    one_gain: ClassVar[bool] = True

    def surrogate(self, inputs: SurrogateInputs) -> Any:
        counts_A = inputs.weight_A != 0
        maths().check_one_advantage_a_row(inputs.advantage_A[counts_A], inputs.row_A[counts_A])
        borders = {"low": inputs.low, "high": inputs.high}
        return maths().geometric_mean(inputs.gap_A, inputs.advantage_A, inputs.weight_A, inputs.row_A, **borders)


@spec
class SAPO(Objective):
    """A smooth gate in the place of the clip (arXiv 2511.20347)."""

    uses_clip: ClassVar[bool] = False
    bounded: ClassVar[bool] = True

    positive: Positive = 1.0
    """How fast the gate closes for tokens of positive advantage."""
    negative: Positive = 1.05
    """The same for negative ones; larger is faster, because they are what destabilises training."""

    def surrogate(self, inputs: SurrogateInputs) -> Any:
        gates = {"positive": self.positive, "negative": self.negative}
        return maths().soft_gate(inputs.gap_A.exp(), inputs.advantage_A, **gates)


@spec
class TOPR(Objective):
    """Tapered off-policy REINFORCE (Le Roux et al. 2025, arXiv 2503.14286): good answers are imitated, bad ones tapered."""

    uses_clip: ClassVar[bool] = False
    bounded: ClassVar[bool] = True
    one_advantage: ClassVar[bool] = True

    low: float = 0.0
    """Least weight of an answer with negative advantage."""
    high: float = 1.0
    """Largest weight of such an answer."""

    def __post_init__(self) -> None:
        require(0 <= self.low <= self.high, f"objective.low={self.low} and objective.high={self.high}: need 0 <= low <= high")

    def surrogate(self, inputs: SurrogateInputs) -> Any:
        borders = {"low": self.low, "high": self.high}
        return maths().tapered(inputs.gap_A, inputs.logp_A, inputs.advantage_A, inputs.row_A, **borders)


@spec
class DPPO(Objective):
    """A trust region in probability rather than in ratio (arXiv 2602.04879): a mask on tokens that have moved too far."""

    uses_clip: ClassVar[bool] = False
    bounded: ClassVar[bool] = True

    divergence: Literal["tv", "kl"] = "tv"
    """How far a token has moved: total variation, or KL of the old policy to the new, of "this token or another"."""
    threshold: Positive = 0.15
    """Beyond it a token's gradient stops; for ``kl`` 0.05 is usual."""
    cap: Positive = 20.0
    """Largest ratio by which a token's gradient counts."""

    def surrogate(self, inputs: SurrogateInputs) -> Any:
        measure = maths().total_variation if self.divergence == "tv" else maths().binary_kl
        logp_A = inputs.logp_A.detach()
        distance_A = measure(logp_A, logp_A - inputs.gap_A.detach())
        limits = {"threshold": self.threshold, "cap": self.cap}
        return maths().divergence_masked(inputs.gap_A.exp(), distance_A, inputs.advantage_A, **limits)


@spec
class ClipCov(Objective):
    """PPO's surrogate without the gradient of a few tokens that would cost most entropy (Cui et al. 2025, arXiv 2505.22617).

    Those are sampled among the tokens whose log-prob and advantage covary strongly. Which ones is settled when the batch is
    labelled, from the log-probs before the update and over the whole batch, so no split of it changes the choice.
    """

    share: PositiveShare = 2e-4
    """Share of the batch's tokens that is sampled (at least one token)."""
    low: float = 1.0
    """Least covariance of a token that may be sampled."""
    high: float = 5.0
    """Largest covariance of a token that may be sampled."""

    def __post_init__(self) -> None:
        require(self.low < self.high, f"objective.low={self.low} is not below objective.high={self.high}")

    def choose(self, units: Sequence[Unit]) -> list[Unit]:
        return with_field(units, "covariant", within_band(covariances(units), units, self.share, self.low, self.high))

    def surrogate(self, inputs: SurrogateInputs) -> Any:
        gain = maths().clipped(inputs.gap_A.exp(), inputs.advantage_A, low=inputs.low, high=inputs.high)
        return maths().detached(gain, inputs.fields["covariant"])


@spec
class KLCov(Objective):
    """The policy gradient with a penalty on the few tokens that would cost most entropy (arXiv 2505.22617); see ClipCov."""

    uses_clip: ClassVar[bool] = False

    share: PositiveShare = 2e-3
    """Share of the batch's tokens, those of highest covariance, that is held back (at least one token)."""
    coefficient: NotNegative = 1.0
    """Weight of ``|log ratio|`` of those tokens."""

    def choose(self, units: Sequence[Unit]) -> list[Unit]:
        return with_field(units, "covariant", highest(covariances(units), units, self.share))

    def surrogate(self, inputs: SurrogateInputs) -> Any:
        chosen_A, ratio_A = inputs.fields["covariant"], inputs.gap_A.exp()
        return maths().penalised(ratio_A, inputs.gap_A, inputs.advantage_A, chosen_A, coefficient=self.coefficient)


@spec
class GuardedRatio(Objective):
    """PPO's surrogate of a ratio that means the same at every noise, for flows (GRPO-Guard: Wang et al., arXiv 2510.22319).

    As a policy moves, log-ratios of transitions fall below 0, the more so the less noise there is, and a clip cuts late ones
    alone. Here their mean is taken out, they are multiplied by the deviation, and gains are divided by the span of time. Such
    ratios move far less (``clip=(2e-6, 2e-6)``), and start from the learner before the batch, which takes a pass of its own.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"proximal", "transition"})
    reads: ClassVar[frozenset[str]] = frozenset({"transition"})
    denoises: ClassVar[bool] = True

    def surrogate(self, inputs: SurrogateInputs) -> Any:
        mean, deviation_A, span_A = (inputs.outputs[f"transition{name}"] for name in ("", "/deviation", "/span"))
        ratio_A = maths().guarded(inputs.gap_A, mean, inputs.fields["transition"], deviation_A).exp()
        gain_A, cut_A = maths().clipped(ratio_A, inputs.advantage_A, low=inputs.low, high=inputs.high)
        return gain_A / span_A, cut_A


AnyObjective = ClippedRatio | PolicyGradient | CISPO | GMPO | SAPO | TOPR | DPPO | ClipCov | KLCov | GuardedRatio
