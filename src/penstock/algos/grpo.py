"""Group relative policy optimization (Shao et al. 2024, arXiv 2402.03300): the siblings of a sample are its baseline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from penstock.algos.advantages import Array, batch_normalised, group_centred, group_normalised, process_normalised
from penstock.algos.kl import IN_LOSS, KLPenalty
from penstock.algos.labels import Trajectory
from penstock.algos.policy import FromGroups, totals
from penstock.algos.tracked_rewards import STATISTICS, TrackedRewards, remembered, standardised, with_statistics
from penstock.config.run import require
from penstock.config.spec import spec
from penstock.core.contracts import Coefficients, Columns
from penstock.core.types import STEP_ENDS, Group, Unit


@spec
class GRPO(FromGroups):
    """A sample's advantage is the z-score of its reward within its group. Relatives are functions of ``compositions.py``.

    The paper: ``scale="std", aggregate="sequence", kl=KLPenalty(place="loss", estimator="k3", coefficient=0.04)``.
    """

    scale: Literal["std", "batch", "none"] = "std"
    """Divide a group's centred rewards by their standard deviation, by that of the whole batch, or leave them."""
    supervision: Literal["outcome", "process", "turn"] = "outcome"
    """One advantage per sample from the sum of its rewards, or one per token from the rewards of the steps that follow (4.1.3
    of the paper). A step ends where rewards per token are not None; if all are numbers, where one is not 0 and at the end.
    ``turn``: what is earned from a token on, less the mean sum of the group's samples, however many turns each has."""
    kl: KLPenalty = IN_LOSS
    history: TrackedRewards | None = None
    """Measure rewards by their prompt's latest ones instead of by their group (DDPO); one sample a prompt will do then."""

    @property
    def per_token(self) -> bool:
        return self.supervision != "outcome"

    @property
    def penalty_in_loss(self) -> str:
        return 'supervision="process" takes the KL penalty in the loss' if self.supervision == "process" else ""

    def __post_init__(self) -> None:
        super().__post_init__()
        wanted = {"process": "std", "turn": "none"}.get(self.supervision, self.scale)
        require(self.scale == wanted, f'supervision="{self.supervision}" is defined for scale="{wanted}"; set that')
        alone = self.scale == "std" and not self.per_token and (self.kl.place == "loss" or not self.kl.coefficient)
        require(self.history is None or alone, "history keeps whole rewards; set scale, supervision and kl.place as usual")

    @property
    def least_samples(self) -> int:
        return 2 if self.history is None else 1

    @property
    def by_group(self) -> bool:
        return self.history is None

    def initial_coefficients(self) -> Coefficients:
        return {**super().initial_coefficients(), **({} if self.history is None else {"history": {}})}

    def remember(self, coefficients: Coefficients, groups: Sequence[Group]) -> Coefficients:
        if self.history is None:
            return coefficients
        return {**coefficients, "history": remembered(coefficients["history"], groups, self.history)}

    def label(self, groups: Sequence[Group], columns: Columns, coefficients: Coefficients) -> list[Unit]:
        if self.history is not None:
            groups = with_statistics(groups, coefficients["history"], self.history)
        return super().label(groups, columns, coefficients)

    def advantages(self, reward_G: Array, group: Sequence[Trajectory]) -> Array:
        return group_normalised(reward_G) if self.scale == "std" else group_centred(reward_G)

    def estimate(self, kept: Sequence[Sequence[Trajectory]], rewards: Sequence[Sequence[Array]]) -> list[list[Any]]:
        if self.supervision == "process":
            return [list(process_normalised(group, _step_ends(found))) for group, found in zip(rewards, kept, strict=True)]
        if self.history is not None:
            pairs = zip(totals(kept, rewards), kept, strict=True)
            return [list(standardised(reward_G, *group[0].sample.extras[STATISTICS])) for reward_G, group in pairs]
        if self.supervision == "turn":
            means = [reward_G.mean() for reward_G in totals(kept, rewards)]
            return [[r[::-1].cumsum()[::-1] - mean for r in group] for group, mean in zip(rewards, means, strict=True)]
        if self.scale == "batch":
            return [list(advantage_G) for advantage_G in batch_normalised(totals(kept, rewards))]
        return super().estimate(kept, rewards)


def _step_ends(group: Sequence[Trajectory]) -> list[Any] | None:
    marked = all(STEP_ENDS in t.sample.extras for t in group)
    return [t.sample.extras[STEP_ENDS][t.sample.action_T] for t in group] if marked else None
