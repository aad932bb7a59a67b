"""What online algorithms share: their common fields, labels without a critic, and the policy loss. Torch waits for a call."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from penstock.algos.advantages import Array
from penstock.algos.distillation import Divergence
from penstock.algos.entropy import EntropyBonus
from penstock.algos.importance_weights import ImportanceWeight, importance_weights
from penstock.algos.kl import KLPenalty
from penstock.algos.labels import (
    Aggregate,
    Trajectory,
    is_flat,
    labelled_row,
    share,
    token_weight,
    trajectories,
)
from penstock.algos.objectives import AnyObjective, ClippedRatio, SurrogateInputs
from penstock.config.run import require
from penstock.core.algorithm import FromSamples
from penstock.core.contracts import Coefficients, Columns, Denominator, LossOutput, Outputs
from penstock.core.types import Group, Metrics, Row, Unit

TOKEN_CLIP = (0.2, 0.2)
"""PPO's interval for the ratio of a token."""


@dataclass(frozen=True, kw_only=True)
class PolicyOptimization(FromSamples):
    """Base of algorithms that raise a surrogate of the policy. Subclasses are specs; they add how advantages are estimated."""

    clip: tuple[float, float] | None = TOKEN_CLIP
    """How far (low, high) the probability ratio may leave 1 before a token's gradient stops; None never stops it."""
    objective: AnyObjective = ClippedRatio()
    """What is made of ratios and advantages; see objectives.py."""
    importance_weights: tuple[ImportanceWeight, ...] = ()
    """Importance weights for samples of another policy, multiplied; the ratio is then taken to the learner before the
    update instead of to the policy that drew the tokens (decoupled PPO)."""
    entropy: EntropyBonus = EntropyBonus()
    """A bonus for the policy's entropy."""
    kl: KLPenalty = KLPenalty(place="reward")
    """A penalty that keeps the policy near its reference, off until it is given a coefficient."""

    @property
    def per_token(self) -> bool:
        """Whether the tokens of a sample may have advantages of their own."""
        return False

    @property
    def aggregate(self) -> Aggregate:
        """What the loss is a mean over."""
        return "token"

    @property
    def denoises(self) -> bool:
        return self.objective.denoises

    @property
    def single_step(self) -> bool:
        return not self.objective.has_ratio

    def __post_init__(self) -> None:
        require(
            self.clip is None or (0 < self.clip[0] <= 1 and self.clip[1] > 0),
            f"clip={self.clip} must be (low, high) with 0 < low <= 1 and high > 0, such as (0.2, 0.28)",
        )
        named = type(self.objective).__name__
        require(
            self.clip is None or self.objective.uses_clip,
            f"clip={self.clip} has no meaning for the objective {named}; set clip=None (null on the command line)",
        )
        require(
            not (self.per_token and self.objective.one_advantage),
            f"the objective {named} needs one advantage per sample; {type(self).__name__} has one per token",
        )
        require(
            not (self.objective.one_gain and self.aggregate == "token"),
            f"the objective {named} gives a whole answer one gain, and a mean over tokens would weigh it by its length; "
            'set aggregate="sequence"',
        )
        require(
            self.clip != TOKEN_CLIP or not self.objective.geometric,
            f"clip={self.clip} is for ratios of tokens; the geometric mean of an answer's stays within thousandths of 1 and "
            "would never be cut; set clip=(3e-4, 4e-4), the paper's",
        )

    coupled: ClassVar[bool] = False

    @property
    def needs(self) -> frozenset[str]:
        return self.kl.needs | self.objective.needs | (frozenset({"proximal"}) if self.importance_weights else frozenset())

    @property
    def teacher(self) -> Divergence | None:
        """The KL from policy to reference, with ``kl.estimator="full"``."""
        return Divergence(kind="reverse") if self.kl.full else None

    @property
    def bounded(self) -> bool:
        clipped = self.clip is not None and "proximal" not in self.objective.needs  # whose ratio knows nothing of age
        return clipped or self.objective.bounded or bool(self.importance_weights)

    def initial_coefficients(self) -> Coefficients:
        """The coefficients of the KL penalty and of the entropy bonus."""
        return {"kl": self.kl.coefficient, "entropy": self.entropy.coefficient}

    def adapt(self, coefficients: Coefficients, metrics: Metrics) -> Coefficients:
        """Moves what is steered, by the batch's ``label_metrics``."""
        return self.entropy.adapt(self.kl.adapt(coefficients, metrics), metrics)

    def row(self, trajectory: Trajectory, advantage: Any, weight: float, coefficients: Coefficients, **more: Any) -> Row:
        """A row with everything that the policy loss of this algorithm reads.

        Args:
            advantage: one per action token, or one number for all of them.
            weight: see :func:`token_weight`.
            more: further fields; arrays are over the action tokens.
        """
        if self.kl.place == "loss" and self.kl.coefficient:
            more["kl_coefficient"] = self.kl.current(coefficients)
        if self.entropy.on:
            more["entropy_coefficient"] = self.entropy.current(coefficients)
        if self.importance_weights:
            more["importance_weight"] = importance_weights(
                self.importance_weights, trajectory.proximal_logp_A, trajectory.logp_A
            )
        if len(trajectory.proximal_logp_A):
            more["proximal_logp"] = trajectory.proximal_logp_A
        if len(trajectory.reference_logp_A):
            more["reference_logp"] = trajectory.reference_logp_A
        more |= {name: trajectory.more[name] for name in self.objective.needs & trajectory.more.keys()}
        advantage_A = np.broadcast_to(np.asarray(advantage), (len(trajectory),))
        weight_A = np.full(len(trajectory), weight)
        return labelled_row(trajectory, advantage=advantage_A, old_logp=trajectory.logp_A, weight=weight_A, **more)

    @property
    def loss_reads(self) -> frozenset[str]:
        more = {"entropy"} if self.entropy.on else set()
        return frozenset({"logp"} | more | ({"divergence"} if self.kl.full else set())) | self.objective.reads

    def compute_loss(self, outputs: Outputs, fields: Mapping[str, Any], batch: Any, denominator: Denominator) -> LossOutput:
        """The weighted mean of the objective's gains, with the KL penalty and an entropy bonus where they are switched on.

        Reads the fields ``advantage``, ``old_logp``, ``weight`` (per action), and where they are in use ``proximal_logp`` and
        ``importance_weight`` (per action), ``reference_logp`` (per action) and ``kl_coefficient`` (per row),
        ``entropy_coefficient`` (per row). Off-policy weights act on the objective's term alone.
        """
        from penstock.algos import losses

        weight_A, over = fields["weight"], share(self.aggregate, denominator)
        start_A = fields.get("proximal_logp", fields["old_logp"])
        gap_A = losses.log_ratio(outputs["logp"], start_A, weight_A)
        low, high = self.clip or (1.0, float("inf"))
        logp_A, advantage_A = (losses.counted(value, weight_A) for value in (outputs["logp"], fields["advantage"]))
        terms = SurrogateInputs(logp_A, gap_A, advantage_A, weight_A, batch.row_A, fields, low, high, outputs)
        gain_A, cut_A = self.objective.surrogate(terms)
        if "importance_weight" in fields:
            gain_A = gain_A * fields["importance_weight"]
        loss = -losses.weighted_mean(gain_A, weight_A, denominator=over)
        metrics = losses.policy_metrics(gap_A.detach(), cut_A, weight_A, denominator=denominator.tokens)
        metrics["policy/loss"] = loss.detach()
        if self.kl.place == "loss" and self.kl.coefficient:
            penalty = self._penalty(outputs, fields, batch, over)
            metrics["kl/loss"] = penalty.detach()
            loss = loss + penalty
        if self.entropy.on:
            scaled_A = weight_A * fields["entropy_coefficient"][batch.row_A]
            entropy = losses.weighted_mean(outputs["entropy"], weight_A, denominator=over)
            metrics["policy/entropy"] = entropy.detach()
            loss = loss - losses.weighted_mean(outputs["entropy"], scaled_A, denominator=over)
        metrics["loss"] = loss.detach()
        return loss, metrics

    def _penalty(self, outputs: Outputs, fields: Mapping[str, Any], batch: Any, over: float) -> Any:
        from penstock.algos import losses

        scaled_A = fields["weight"] * fields["kl_coefficient"][batch.row_A]
        if self.kl.estimator == "full":
            return losses.weighted_mean(outputs["divergence"], scaled_A, denominator=over)
        # Samples are those of the policy that generated them, so this ratio starts there, wherever the objective's does.
        behaved_A = losses.log_ratio(outputs["logp"], fields["old_logp"], fields["weight"])
        ratio_A = behaved_A.exp() if self.kl.reweight else None
        reference_A, estimator = fields["reference_logp"], self.kl.estimator
        return losses.kl_loss(outputs["logp"], reference_A, scaled_A, estimator=estimator, denominator=over, ratio=ratio_A)


@dataclass(frozen=True, kw_only=True)
class WithoutCritic(PolicyOptimization):
    """Base of algorithms without a critic. A subclass says by ``estimate`` how much better each action was than expected."""

    aggregate: Aggregate = "token"
    """Mean over tokens, over sequences of their token means, or of sequence sums over ``constant``."""
    constant: int = 0
    """What a sequence's sum is divided by if ``aggregate="constant"``; give the longest answer that may be sampled."""
    skip_flat: bool = False
    """Leave out groups whose rewards are all equal; they then count in no denominator (and pay no KL penalty)."""

    @property
    def penalty_in_loss(self) -> str:
        """Why rewards must come without a KL penalty; empty: they may have one."""
        return ""

    @property
    def by_group(self) -> bool:
        """Whether a group's rewards alone say that its advantages are all 0."""
        return True

    def __post_init__(self) -> None:
        super().__post_init__()
        why = self.penalty_in_loss
        require(not why or self.kl.place == "loss", f'{why}; set kl.place="loss"')
        require(
            not (self.skip_flat and self.kl.place == "reward" and self.kl.coefficient),
            'skip_flat leaves out groups of equal rewards, which a KL penalty in the reward makes differ; set kl.place="loss"',
        )
        by_constant = self.aggregate == "constant"
        require(
            by_constant == (self.constant > 0),
            f"aggregate={self.aggregate!r} with constant={self.constant}; "
            + ("set constant to sampling.max_new_tokens" if by_constant else 'set constant=0 or aggregate="constant"'),
        )

    @abstractmethod
    def estimate(self, kept: Sequence[Sequence[Trajectory]], rewards: Sequence[Sequence[Array]]) -> list[list[Any]]:
        """Advantages of a batch, ``[group][sample]``: a number each, or an array over the sample's actions.

        Args:
            kept: the valid samples of each group.
            rewards: their rewards per action, less the KL penalty if it is in the reward.
        """

    def label(self, groups: Sequence[Group], columns: Columns, coefficients: Coefficients) -> list[Unit]:
        """One unit per group with enough valid samples."""
        coefficient = self.kl.current(coefficients)
        kept = trajectories(groups, columns, needs=self.needs, least=self.least_samples, greedy=self.greedy)
        rewards = [[charged(self.kl, t, coefficient) for t in group] for group in kept]
        units: list[Unit] = []
        for group, advantages in zip(kept, self.estimate(kept, rewards), strict=True):
            unit = tuple(
                self.row(t, advantage, token_weight(self.aggregate, len(t), self.constant), coefficients)
                for t, advantage in zip(group, advantages, strict=True)
            )
            if not (self.skip_flat and is_flat(unit)):
                units.append(unit)
        return self.objective.choose(units)

    def has_signal(self, group: Group) -> bool:
        """Whether the group has enough valid samples and, where that depends on it alone, an advantage that is not 0."""
        if not self.by_group:
            return super().has_signal(group)
        kept = trajectories([group], {}, least=self.least_samples, greedy=self.greedy)
        found = self.estimate(kept, [[t.reward_A for t in members] for members in kept])
        return any(np.any(advantage) for advantages in found for advantage in advantages)


@dataclass(frozen=True, kw_only=True)
class FromGroups(WithoutCritic):
    """Base of algorithms whose samples are judged against their siblings.

    A subclass is a spec that says how: ``advantages(reward_G, group) -> advantage_G``, over the valid samples of one group.
    A KL penalty in the reward counts, summed over the tokens of a sample, as part of its one reward.
    """

    @property
    def least_samples(self) -> int:
        return 2

    @abstractmethod
    def advantages(self, reward_G: Array, group: Sequence[Trajectory]) -> Array:
        """One advantage per sample of a group, from one reward each."""

    def estimate(self, kept: Sequence[Sequence[Trajectory]], rewards: Sequence[Sequence[Array]]) -> list[list[Any]]:
        """All tokens of a sample share its advantage."""
        pairs = zip(totals(kept, rewards), kept, strict=True)
        return [list(self.advantages(reward_G, group)) for reward_G, group in pairs]


def charged(kl: KLPenalty, t: Trajectory, coefficient: float) -> Array:
    """Rewards less the penalty, by the learner's own log-probs before the update where it has scored them."""
    logp_A = t.proximal_logp_A if len(t.proximal_logp_A) else t.logp_A
    charged_A: Array = kl.charge(t.reward_A, logp_A, t.reference_logp_A, coefficient)
    return charged_A


def totals(kept: Sequence[Sequence[Trajectory]], rewards: Sequence[Sequence[Array]]) -> list[Array]:
    """The one reward of each sample, ``[G]`` of each group: that of all its actions, those left out for their age included."""
    groups = [zip(group, reward, strict=True) for group, reward in zip(kept, rewards, strict=True)]
    return [np.array([reward_A.sum() + t.earlier_reward for t, reward_A in group]) for group in groups]
