"""Several reward models as one: what one of them wrongly likes, the others may not (Coste et al. 2023, arXiv 2310.02743)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from penstock.core.errors import RewardError

WAYS: tuple[str, ...] = ("mean", "minimum", "mean_minus_std")


def combined(score_MG: ArrayLike, combine: str, penalty: float = 1.0) -> list[float]:
    """One score a sample from those of ``M`` models.

    ``mean``; ``minimum``, the most pessimistic model ("worst case"); ``mean_minus_std``, ``mean - penalty · std`` over the
    models (a population's deviation), which is low where they disagree. (The paper's "uncertainty weighted" score takes off
    the variance; the deviation is in units of the score.)

    Raises:
        RewardError: an unknown way, a negative penalty, or a disagreement of fewer than two models.
    """
    score = np.asarray(score_MG, np.float64)
    if combine not in WAYS:
        raise RewardError(f'combine="{combine}" is unknown; use {", ".join(WAYS)}')
    if combine == "mean_minus_std" and len(score) < 2:
        raise RewardError("one reward model alone cannot disagree; name several, such as model:@a+@b, or use combine=mean")
    if penalty < 0:
        raise RewardError(f"penalty={penalty} would reward disagreement; use 0 or more")
    if combine == "minimum":
        return score.min(0).tolist()
    spread = penalty * score.std(0) if combine == "mean_minus_std" else 0.0
    return (score.mean(0) - spread).tolist()
