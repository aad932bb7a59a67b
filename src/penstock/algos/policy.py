"""What online algorithms share: control of the KL penalty, labels by group, the clipped policy loss. Torch waits for a call."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from penstock.algos.advantages import Array
from penstock.algos.kl import IN_REWARD, KLPenalty
from penstock.algos.labels import (
    Aggregate,
    check_aggregate,
    check_clip,
    is_flat,
    policy_row,
    share,
    token_weight,
    trajectories,
)
from penstock.core.contracts import Columns, Control, Denominator, LossOutput, Outputs
from penstock.core.types import Group, Metrics, Unit


class FromSamples:
    """Base of algorithms that learn from generated samples. A subclass is a spec with a field ``kl: KLPenalty``.

    ``label(groups, columns, control)`` gives one unit per group that is trained on; the control starts as
    ``initial_control()`` and moves by ``control(control, metrics)`` once per batch, with the batch's ``label_metrics``.
    """

    feedback: ClassVar[str] = "samples"
    least_samples: ClassVar[int] = 1
    """Valid samples without which a group cannot be labelled."""
    kl: KLPenalty

    @property
    def needs(self) -> frozenset[str]:
        """Columns to fill before ``label``: any of "reference", "value"."""
        return self.kl.needs

    def initial_control(self) -> Control:
        """Where the slow variables of a run start."""
        return Control(kl_coefficient=self.kl.coefficient)

    def control(self, control: Control, metrics: Metrics) -> Control:
        """The slow variables of the next batch, after one whose ``label_metrics`` are given; changes nothing in place."""
        return self.kl.adapt(control, metrics)


@dataclass(frozen=True, kw_only=True)
class FromGroups(FromSamples, ABC):
    """Base of algorithms without a critic, whose samples are judged against their siblings.

    A subclass is a spec that says how: ``advantages(reward_G) -> advantage_G``, over the valid samples of one group.
    """

    least_samples: ClassVar[int] = 2

    aggregate: Aggregate = "token"
    """Mean over tokens, over sequences of their token means, or of sequence sums over ``constant``."""
    constant: int = 0
    """What a sequence's sum is divided by if ``aggregate="constant"``; give the longest answer that may be sampled."""
    clip: tuple[float, float] | None = (0.2, 0.2)
    """How far (low, high) the probability ratio may leave 1 before a token's gradient stops; None never stops it."""
    kl: KLPenalty = IN_REWARD
    """In the reward, the penalty of all tokens of a sample counts as part of its one reward."""
    skip_flat: bool = False
    """Leave out groups whose rewards are all equal; they then count in no denominator (and pay no KL penalty)."""

    def __post_init__(self) -> None:
        check_aggregate(self.aggregate, self.constant)
        check_clip(self.clip)

    @abstractmethod
    def advantages(self, reward_G: Array) -> Array:
        """One advantage per sample of a group, from one reward each."""

    def label(self, groups: Sequence[Group], columns: Columns, control: Control) -> list[Unit]:
        """One unit per group with two or more valid samples; all tokens of a sample share its advantage."""
        coefficient = self.kl.current(control)
        more = penalty_field(self.kl, coefficient)
        units: list[Unit] = []
        for group in trajectories(groups, columns, needs=self.needs, least=self.least_samples):
            reward_G = [self.kl.charge(t.reward_A, t.logp_A, t.reference_logp_A, coefficient).sum() for t in group]
            unit = tuple(
                policy_row(t, advantage, token_weight(self.aggregate, len(t), self.constant), **more)
                for t, advantage in zip(group, self.advantages(np.array(reward_G)), strict=True)
            )
            if not (self.skip_flat and is_flat(unit)):
                units.append(unit)
        return units

    def loss(self) -> PolicyLoss:
        """The policy loss, with the KL penalty if it stands in the loss."""
        return PolicyLoss(clip=self.clip, kl=self.kl, aggregate=self.aggregate)


def penalty_field(kl: KLPenalty, coefficient: float) -> dict[str, float]:
    """The row field that carries the coefficient in force to a loss that holds the penalty."""
    return {"kl_coefficient": coefficient} if coefficient and kl.place == "loss" else {}


@dataclass(frozen=True)
class PolicyLoss:
    """Clipped policy gradient, with the KL penalty and an entropy bonus where they are switched on.

    Reads the fields ``advantage``, ``old_logp``, ``weight`` (all per action), and for a penalty in the loss also
    ``reference_logp`` (per action) and ``kl_coefficient`` (per row).
    """

    clip: tuple[float, float] | None
    """Interval (1 - low, 1 + high) of the ratio; None leaves it free."""
    kl: KLPenalty
    aggregate: Aggregate = "token"
    entropy_bonus: float = 0.0

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"logp", "entropy"} if self.entropy_bonus else {"logp"})

    def __call__(self, outputs: Outputs, fields: Mapping[str, Any], batch: Any, denominator: Denominator) -> LossOutput:
        from penstock.algos import losses

        low, high = self.clip or (1.0, float("inf"))
        over = share(self.aggregate, denominator)
        tokens = outputs.logp_A, fields["old_logp"], fields["advantage"], fields["weight"]
        loss = losses.policy_clip_loss(*tokens, low=low, high=high, denominator=over)
        metrics = losses.policy_metrics(*tokens, low=low, high=high, denominator=denominator.tokens)
        metrics["policy/loss"] = loss.detach()
        if self.kl.place == "loss" and self.kl.coefficient:
            scaled_A = fields["weight"] * fields["kl_coefficient"][batch.row_A]
            reference_A, estimator = fields["reference_logp"], self.kl.estimator
            penalty = losses.kl_loss(outputs.logp_A, reference_A, scaled_A, estimator=estimator, denominator=over)
            metrics["kl/loss"] = penalty.detach()
            loss = loss + penalty
        if self.entropy_bonus:
            entropy = losses.entropy_mean(outputs.entropy_A, fields["weight"], denominator=over)
            metrics["policy/entropy"] = entropy.detach()
            loss = loss - self.entropy_bonus * entropy
        metrics["loss"] = loss.detach()
        return loss, metrics
