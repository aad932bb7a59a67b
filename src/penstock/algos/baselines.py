"""Relatives of GRPO that differ in their baseline or scale: ReMax, OPO, GPG, Pass@k training, PKPO, GDPO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, ClassVar, Literal

import numpy as np

from penstock.algos.advantages import (
    Array,
    decoupled,
    group_centred,
    max_at_k_advantages,
    optimal_baseline,
    pass_at_k_advantages,
    returns_to_go,
    whiten,
    with_signal,
)
from penstock.algos.kl import IN_LOSS, KLPenalty
from penstock.algos.labels import Trajectory
from penstock.algos.objectives import AnyObjective, PolicyGradient
from penstock.algos.policy import FromGroups, WithoutCritic, totals
from penstock.config.run import require
from penstock.config.spec import Count, spec
from penstock.core.errors import TrainingError
from penstock.core.types import Group


@spec
class ReMax(WithoutCritic):
    """A sample's advantage is its reward less that of the greedy answer (Li et al. 2023, arXiv 2310.10505).

    The rollout adds one greedy answer to each group. It is scored like the others and never trained on. A group whose greedy
    answer failed has no baseline and is left out.
    """

    greedy: ClassVar[bool] = True

    clip: tuple[float, float] | None = None
    objective: AnyObjective = PolicyGradient()

    to_go: bool = False
    """An advantage per token, from the rewards that follow it, less the greedy answer's reward; the paper has one reward at the
    end of a sample, whose tokens share one advantage."""

    @property
    def per_token(self) -> bool:
        return self.to_go

    def estimate(self, kept: Sequence[Sequence[Trajectory]], rewards: Sequence[Sequence[Array]]) -> list[list[Any]]:
        """The KL penalty is charged to the sample and not to its baseline."""
        greedy = [group[0].greedy_reward for group in kept]
        if self.to_go:
            return [[returns_to_go(r, 1.0) - base for r in group] for group, base in zip(rewards, greedy, strict=True)]
        return [list(reward_G - base) for reward_G, base in zip(totals(kept, rewards), greedy, strict=True)]


@spec
class OPO(FromGroups):
    """On-policy RL with the optimal baseline (Hao et al. 2025, arXiv 2505.23585): the length-weighted mean of the group.

    The paper is exactly on-policy: one step a batch, no clip, no KL term, no entropy bonus.
    """

    clip: tuple[float, float] | None = None
    objective: AnyObjective = PolicyGradient()

    def advantages(self, reward_G: Array, group: Sequence[Trajectory]) -> Array:
        return optimal_baseline(reward_G, [len(trajectory) for trajectory in group])


@spec
class GPG(FromGroups):
    """Group policy gradient (Chu et al. 2025, arXiv 2504.02546): centred rewards, the plain policy gradient, no clip.

    Flat groups stay in the mean, and the advantages of the others are scaled up by what the flat ones take away.
    """

    clip: tuple[float, float] | None = None
    objective: AnyObjective = PolicyGradient()
    kl: KLPenalty = IN_LOSS
    penalty_in_loss: ClassVar[str] = "GPG counts groups of equal rewards, and a KL penalty in the reward makes all differ"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            not self.skip_flat, "GPG corrects for flat groups by a factor, skip_flat would do so twice; set skip_flat=false"
        )

    def advantages(self, reward_G: Array, group: Sequence[Trajectory]) -> Array:
        return group_centred(reward_G)

    def estimate(self, kept: Sequence[Sequence[Trajectory]], rewards: Sequence[Sequence[Array]]) -> list[list[Any]]:
        return [list(group) for group in with_signal([np.array(group) for group in super().estimate(kept, rewards)])]


@spec
class PassAtK(FromGroups):
    """Pass@k training (Chen et al. 2025, arXiv 2508.10751): a group is rewarded as if any ``k`` of its answers were one try."""

    k: Count = 4
    """Answers of which one has to be right."""
    right: float | None = None
    """An answer is right if its reward is above this. None: rewards are 1 for right and 0 for wrong, others are refused."""
    kl: KLPenalty = IN_LOSS
    penalty_in_loss: ClassVar[str] = "pass@k counts right and wrong answers, not penalties"

    @property
    def least_samples(self) -> int:
        return max(2, self.k)

    def advantages(self, reward_G: Array, group: Sequence[Trajectory]) -> Array:
        if self.right is None and not np.isin(reward_G, (0.0, 1.0)).all():
            raise TrainingError(
                f"pass@k counts right (1) and wrong (0) answers, got {reward_G.tolist()}; set right, or use PKPO"
            )
        return pass_at_k_advantages(reward_G > (self.right or 0.0), self.k)


@spec
class PKPO(FromGroups):
    """Pass-at-k policy optimization (Walder & Karkhanis 2025, arXiv 2505.15201): raises the expected best reward of ``k``
    answers, whatever rewards are; of 0 and 1 it is pass@k."""

    k: Count = 4
    """Answers of which the best counts."""
    baseline: Literal["loo-1", "loo", "none"] = "loo-1"
    """What is taken off without a bias: see ``advantages.max_at_k_advantages``."""
    kl: KLPenalty = IN_LOSS

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.baseline != "loo-1" or self.k > 1, 'baseline="loo-1" is what k - 1 answers are worth; set k=2 or "loo"')

    @property
    def least_samples(self) -> int:
        return max(2, self.k + (self.baseline == "loo"))

    def advantages(self, reward_G: Array, group: Sequence[Trajectory]) -> Array:
        return max_at_k_advantages(reward_G, self.k, self.baseline)


@spec
class GDPO(WithoutCritic):
    """Several rewards, each normalised within its group, then summed and whitened over the batch (arXiv 2601.05242).

    Reads the rewards by name from ``extras["rewards"]`` of the samples, before the weights of the stage's reward mixture,
    which do not act here.
    """

    weights: Mapping[str, float] = field(default_factory=dict)
    """Weight of each reward by its name; empty: every reward counts 1."""
    whiten: Literal["sample", "token"] = "sample"
    """What counts once when the sums are whitened over the batch, as in the paper a sample, or each of its tokens."""
    kl: KLPenalty = IN_LOSS
    penalty_in_loss: ClassVar[str] = "GDPO reads rewards by name, penalties are none of them"

    least_samples: ClassVar[int] = 2

    def estimate(self, kept: Sequence[Sequence[Trajectory]], rewards: Sequence[Sequence[Array]]) -> list[list[Any]]:
        """One number per sample.

        Raises:
            TrainingError: a weight names a reward that no sample has, or samples carry no rewards by name.
        """
        if not kept:
            return []
        found = sorted({name for group in kept for t in group for name in t.sample.extras.get("rewards", {})})
        weights = dict(self.weights) or dict.fromkeys(found, 1.0)
        if not weights or not set(weights) <= set(found):
            raise TrainingError(f"GDPO weighs the rewards {sorted(weights)}, the samples have {found}")
        summed = iter(np.concatenate([decoupled(self._table(group, weights), list(weights.values())) for group in kept]))
        counts = [len(t) if self.whiten == "token" else 1 for group in kept for t in group]
        white = iter(whiten([np.full(count, next(summed)) for count in counts]))
        return [[float(next(white)[0]) for _ in group] for group in kept]

    def _table(self, group: Sequence[Trajectory], weights: Mapping[str, float]) -> list[list[float]]:
        """Rewards by name and sample; NaN where one does not apply."""
        rewards = [t.sample.extras.get("rewards", {}) for t in group]
        return [[float("nan") if row.get(name) is None else float(row[name]) for row in rewards] for name in weights]

    def has_signal(self, group: Group) -> bool:
        """Whether some reward that counts differs between the group's valid samples."""
        rewards = [sample.extras.get("rewards", {}) for sample in group.samples if sample.valid]
        given = {name for row in rewards for name in row}
        names = {name for name, weight in self.weights.items() if weight} if self.weights else given
        spread = [{row[name] for row in rewards if row.get(name) is not None} for name in names]
        return len(rewards) >= self.least_samples and any(len(values) > 1 for values in spread)
