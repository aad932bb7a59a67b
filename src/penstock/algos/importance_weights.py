"""Off-policy correction: weights for samples that another policy drew than the one the update starts from.

Three policies meet (decoupled PPO: Hilton et al. 2022, arXiv 2110.00641; AReaL, arXiv 2505.24298): the *behaviour* policy
that drew the tokens (stale weights, another engine's arithmetic), the *proximal* policy, which is the learner before the
batch's first update, and the *current* one that is trained. The objective's ratio is current over proximal; the weights here
are proximal over behaviour. They are known when the batch is labelled, in float64 over whole samples, so they are plain
arrays that no split of the batch can change. A weight of 0 takes a token's gradient away but leaves it in the denominators.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from penstock.algos.advantages import Array
from penstock.algos.kl import LOG_RATIO_LIMIT
from penstock.config.run import require
from penstock.config.spec import Positive, spec
from penstock.core.errors import TrainingError

Level = Literal["token", "sequence", "geometric"]
Outside = Literal["truncate", "mask", "reject"]


def ratios(proximal_logp_A: ArrayLike, behaviour_logp_A: ArrayLike, level: Level) -> Array:
    """Probability ratio of proximal to behaviour policy at each action of one sample, ``[A]``.

    ``token``: the token's own. ``sequence``: the product over the sample, which is unbiased and wild. ``geometric``: the
    geometric mean over the sample. Logarithms are clamped to ±20 before ``exp``.

    Raises:
        TrainingError: unequal lengths, no action, or log-probs that are not finite.
    """
    proximal_A, behaviour_A = np.asarray(proximal_logp_A, np.float64), np.asarray(behaviour_logp_A, np.float64)
    if proximal_A.shape != behaviour_A.shape or proximal_A.ndim != 1 or not len(proximal_A):
        raise TrainingError(f"log-probs of shape {proximal_A.shape} and {behaviour_A.shape} do not go together")
    gap_A = proximal_A - behaviour_A
    if not np.isfinite(gap_A).all():
        raise TrainingError("an importance weight needs finite log-probs of both policies")
    if level != "token":
        gap_A = np.full_like(gap_A, gap_A.sum() if level == "sequence" else gap_A.mean())
    return np.exp(gap_A.clip(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))


def bounded(ratio_A: Array, outside: Outside, low: float, high: float) -> Array:
    """The weight of each ratio: itself within [low, high]; what else, ``outside`` says.

    ``truncate``: the nearer border. ``mask``: 0. ``reject``: 0, and 1 within the band, so that ratios select and do not weigh.
    """
    if outside == "truncate":
        return ratio_A.clip(low, high)
    kept_A = (ratio_A >= low) & (ratio_A <= high)
    return np.where(kept_A, ratio_A if outside == "mask" else 1.0, 0.0)


@spec
class ImportanceWeight:
    """One importance weight; an algorithm multiplies those in its ``importance_weights``.

    Truncated importance sampling (Yao et al. 2025): ``level="token", high=2``; over sequences ``level="sequence"``.
    Masked importance sampling: ``outside="mask"``. IcePop (Ring-1T, arXiv 2510.18855): ``outside="mask", low=0.5, high=5``.
    Geometric band: ``level="geometric", outside="reject", low=0.99, high=1.01``.
    PipelineRL's truncated weight (arXiv 2509.19128): ``high=5``. The exact weight of decoupled PPO: ``high=1e9``.
    """

    level: Level = "token"
    """The ratio of each token, of the sequence (product), or the geometric mean over the sequence."""
    outside: Outside = "truncate"
    """What becomes of a ratio outside the band: cut to its border, or 0; ``reject`` also sets those within it to 1."""
    low: float = 0.0
    """Lower end of the band."""
    high: Positive = 2.0
    """Upper end of the band."""

    def __post_init__(self) -> None:
        require(0 <= self.low <= self.high, f"importance_weights: low={self.low}, high={self.high}; need 0 <= low <= high")

    def weights(self, proximal_logp_A: ArrayLike, behaviour_logp_A: ArrayLike) -> Array:
        """The weight of each action of one sample, ``[A]``."""
        return bounded(ratios(proximal_logp_A, behaviour_logp_A, self.level), self.outside, self.low, self.high)


def importance_weights(rules: Sequence[ImportanceWeight], proximal_logp_A: ArrayLike, behaviour_logp_A: ArrayLike) -> Array:
    """The product of the weights of all rules at each action of one sample, ``[A]``."""
    weight_A = np.ones(len(np.asarray(behaviour_logp_A)))
    for rule in rules:
        weight_A = weight_A * rule.weights(proximal_logp_A, behaviour_logp_A)
    return weight_A
