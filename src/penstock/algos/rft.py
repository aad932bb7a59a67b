"""Self-improvement by selection: draw, score, keep the best of each prompt, imitate them (RFT, RAFT, verified self-training).

Dong et al. 2023 (RAFT, arXiv 2304.06767), Yuan et al. 2023 (RFT, arXiv 2308.01825); the rising quantile is that of ReST
(Gulcehre et al. 2023, arXiv 2308.08998).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from penstock.algos.labels import Trajectory, labelled_row, trajectories
from penstock.algos.sft import likelihood_loss
from penstock.config.run import require
from penstock.config.spec import Count, spec
from penstock.core.algorithm import FromSamples, scored_samples
from penstock.core.contracts import Coefficients, Columns, Denominator, LossOutput, Outputs
from penstock.core.errors import TrainingError
from penstock.core.types import Group, Metrics, Unit

TIE = 1e-9
"""Rewards nearer to a quantile than this share of their spread tie with it."""


@spec
class RFT(FromSamples):
    """Keeps the samples of each prompt whose reward reaches a quantile of the prompt's rewards, and imitates them.

    The quantile rises from batch to batch, so that first the worst are left out and in the end all but the best. Equal
    answers to a prompt count once. With a verifier whose reward is 1 or 0, ``least=1`` keeps exactly what was verified.
    """

    start: float = 0.5
    """Quantile of the first batch; 0 leaves out nothing, 1 keeps only the best."""
    end: float = 0.95
    """Quantile that is reached in the end."""
    rise: Count = 20
    """Batches from the first quantile to the last."""
    least: float | None = None
    """Reward that a sample needs as well, such as 1 for a verifier. None: no bound, but a prompt whose samples were all
    rewarded alike is left out, as nothing says that they are good."""

    coupled: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require(
            0 <= self.start <= self.end <= 1,
            f"start={self.start} and end={self.end} must rise within [0, 1], such as 0.5 and 0.95",
        )

    def initial_coefficients(self) -> Coefficients:
        """The first quantile."""
        return {"quantile": self.start}

    def adapt(self, coefficients: Coefficients, metrics: Metrics) -> Coefficients:
        """The quantile of the next batch, one step of the rise higher."""
        step = (self.end - self.start) / self.rise
        # From the first quantile at once, so that no rounding adds up over the batches.
        risen = round((coefficients["quantile"] - self.start) / step) + 1 if step else 0
        return {"quantile": min(self.end, self.start + (self.end - self.start) * risen / self.rise)}

    def has_signal(self, group: Group) -> bool:
        """Whether some sample would be kept, which the best one is at any quantile unless all are alike or below ``least``."""
        reward_G = [sample.reward or 0.0 for sample in scored_samples(group)]
        return bool(reward_G) and (np.ptp(reward_G) > 0 if self.least is None else max(reward_G) >= self.least)

    def label(self, groups: Sequence[Group], columns: Columns, coefficients: Coefficients) -> list[Unit]:
        """One unit per group of which a sample is kept; actions are what the policy answered, never the prompt.

        Samples that failed are neither kept nor counted in a quantile.
        """
        units = []
        for group in trajectories(groups, columns):
            reward_G = np.array([trajectory.reward for trajectory in group])
            keep_G = reaches_quantile(reward_G, coefficients["quantile"], self.least)
            units.append(self.imitated([t for t, keep in zip(group, keep_G, strict=True) if keep]))
        return [unit for unit in units if unit]

    def imitated(self, best: Sequence[Trajectory]) -> Unit:
        """Rows of the samples of a prompt that are kept."""
        return tuple(labelled_row(t, weight=np.ones(len(t))) for t in distinct(best))

    def compute_loss(self, outputs: Outputs, fields: Mapping[str, Any], batch: Any, denominator: Denominator) -> LossOutput:
        """Negative log-likelihood of the kept answers, a mean over their tokens."""
        return likelihood_loss(outputs, fields, "token", denominator)


def reaches_quantile(reward_G: ArrayLike, quantile: float, least: float | None) -> NDArray[np.bool_]:
    """Which samples of a prompt have a reward of at least the ``quantile`` of all (linear between two) and of ``least``.

    Without ``least`` none does where all rewards are equal. A reward that ties with the quantile is kept, so the best is
    always among those that reach it.

    Raises:
        TrainingError: no reward, one that is not finite, or a quantile outside [0, 1].
    """
    reward_G = np.asarray(reward_G, np.float64)
    if reward_G.ndim != 1 or not len(reward_G) or not np.isfinite(reward_G).all():
        raise TrainingError(f"a quantile needs finite rewards of one prompt, got {reward_G.tolist()}")
    if not 0 <= quantile <= 1:
        raise TrainingError(f"quantile={quantile} is outside [0, 1]")
    worth = np.ptp(reward_G) > 0 if least is None else reward_G >= least
    # Rounding moves a quantile by an ulp off the reward that it should be; a tie is a tie all the same.
    return (reward_G >= np.quantile(reward_G, quantile) - TIE * np.ptp(reward_G)) & worth


def distinct(group: Sequence[Trajectory]) -> list[Trajectory]:
    """The first of each set of samples with equal tokens, in order."""
    seen: dict[bytes, Trajectory] = {}
    for trajectory in group:
        seen.setdefault(np.asarray(trajectory.sample.tokens_T, np.int64).tobytes(), trajectory)
    return list(seen.values())
