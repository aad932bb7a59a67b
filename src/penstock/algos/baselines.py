"""Relatives of GRPO that differ in their baseline or scale: ReMax, OPO, GPG, Pass@k training, GDPO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, ClassVar

import numpy as np

from penstock.algos.advantages import (
    Array,
    decoupled,
    group_centred,
    optimal_baseline,
    pass_at_k_advantages,
    whiten,
    with_signal,
)
from penstock.algos.kl import IN_LOSS, KLPenalty
from penstock.algos.labels import Trajectory, action_rewards
from penstock.algos.objectives import AnyObjective, PolicyGradient
from penstock.algos.policy import FromGroups, WithoutCritic
from penstock.config.run import require
from penstock.config.spec import Count, spec
from penstock.core.errors import TrainingError
from penstock.core.types import Group, Sample


@spec
class ReMax(WithoutCritic):
    """A sample's advantage is its reward less that of the greedy answer (Li et al. 2023, arXiv 2310.10505).

    The rollout adds one greedy answer to each group. It is scored like the others and never trained on. A group whose greedy
    answer failed has no baseline and is left out.
    """

    greedy: ClassVar[bool] = True

    clip: tuple[float, float] | None = None
    objective: AnyObjective = PolicyGradient()

    def estimate(self, kept: Sequence[Sequence[Trajectory]], rewards: Sequence[Sequence[Array]]) -> list[list[Any]]:
        """All tokens of a sample share its advantage; the KL penalty is charged to the sample and not to its baseline."""
        pairs = [zip(group, reward, strict=True) for group, reward in zip(kept, rewards, strict=True)]
        return [[reward_A.sum() - t.greedy_reward for t, reward_A in group] for group in pairs]

    def has_signal(self, group: Group) -> bool:
        """Whether some answer was worth more or less than the greedy one."""
        scored = [sample for sample in group.samples if sample.valid]
        greedy = [_total(sample) for sample in scored if sample.extras.get("greedy")]
        sampled = [_total(sample) for sample in scored if not sample.extras.get("greedy")]
        return bool(greedy) and any(reward != greedy[0] for reward in sampled)


def _total(sample: Sample) -> float:
    return float(action_rewards(sample).sum())


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
    """Pass@k training (Chen et al. 2025, arXiv 2508.10751): a group is rewarded as if any ``k`` of its answers were one try.

    Rewards are taken as right or wrong.
    """

    k: Count = 4
    """Answers of which one has to be right."""
    right: float = 0.5
    """An answer is right if its reward is above this."""
    kl: KLPenalty = IN_LOSS

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.kl.place == "loss", 'pass@k counts right and wrong answers, not penalties; set kl.place="loss"')

    @property
    def least_samples(self) -> int:
        return max(2, self.k)

    def advantages(self, reward_G: Array, group: Sequence[Trajectory]) -> Array:
        return pass_at_k_advantages(reward_G > self.right, self.k)


@spec
class GDPO(WithoutCritic):
    """Several rewards, each normalised within its group, then summed and whitened over the batch (arXiv 2601.05242).

    Reads the rewards by name from ``extras["rewards"]`` of the samples, before the weights of the stage's reward mixture,
    which do not act here.
    """

    weights: Mapping[str, float] = field(default_factory=dict)
    """Weight of each reward by its name; empty: every reward counts 1."""
    kl: KLPenalty = IN_LOSS

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.kl.place == "loss", 'GDPO reads rewards by name, penalties are none of them; set kl.place="loss"')

    least_samples: ClassVar[int] = 2

    def estimate(self, kept: Sequence[Sequence[Trajectory]], rewards: Sequence[Sequence[Array]]) -> list[list[Any]]:
        """One number per sample; whitening counts each sample of the batch once.

        Raises:
            TrainingError: a weight names a reward that no sample has, or samples carry no rewards by name.
        """
        if not kept:
            return []
        found = sorted({name for group in kept for t in group for name in t.sample.extras.get("rewards", {})})
        weights = dict(self.weights) or dict.fromkeys(found, 1.0)
        if not weights or not set(weights) <= set(found):
            raise TrainingError(f"GDPO weighs the rewards {sorted(weights)}, the samples have {found}")
        summed = [decoupled(self._table(group, weights), list(weights.values())) for group in kept]
        white = iter(np.concatenate(whiten([np.asarray(total) for total in summed])))
        return [[float(next(white)) for _ in group] for group in kept]

    def _table(self, group: Sequence[Trajectory], weights: Mapping[str, float]) -> list[list[float]]:
        """Rewards by name and sample; NaN where one does not apply."""
        rewards = [t.sample.extras.get("rewards", {}) for t in group]
        return [[float("nan") if row.get(name) is None else float(row[name]) for row in rewards] for name in weights]

    def has_signal(self, group: Group) -> bool:
        """Whether some reward differs between the group's valid samples."""
        rewards = [sample.extras.get("rewards", {}) for sample in group.samples if sample.valid]
        names = self.weights or {name for row in rewards for name in row}
        spread = [{row[name] for row in rewards if row.get(name) is not None} for name in names]
        return len(rewards) >= self.least_samples and any(len(values) > 1 for values in spread)
