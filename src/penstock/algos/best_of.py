"""What picking the best of several samples would give, estimated without bias from more samples than are picked from."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from penstock.core.errors import TrainingError


def pass_at_k(samples: int, right: int, k: int) -> float:
    """``1 - C(n - c, k) / C(n, k)``: the chance that one of ``k`` samples is right (Chen et al. 2021, arXiv 2107.03374).

    Args:
        samples: n, samples of a prompt.
        right: c, how many of them are right.
        k: samples that may be handed in, from 1 to n.

    Raises:
        TrainingError: ``k`` outside 1 … n, or more right ones than samples.
    """
    if not 1 <= k <= samples or not 0 <= right <= samples:
        raise TrainingError(f"pass@{k} of {samples} samples with {right} right ones is undefined")
    return 1 - math.comb(samples - right, k) / math.comb(samples, k)


def best_of_k(score_G: ArrayLike, value_G: ArrayLike, k: int) -> float:
    """The expected value of the sample with the highest score among ``k`` taken without replacement from ``n``.

    With samples ordered by score, ``Σ_i C(i - 1, k - 1) / C(n, k) · value_i`` (Nakano et al. 2021, arXiv 2112.09332, appendix
    I). Samples of equal score count in every order: each counts the mean value of them all. Where the value is the score,
    and 0 or 1, it is :func:`pass_at_k`.

    Args:
        score_G: what the choice is made by, such as a reward model's score.
        value_G: what the choice is worth, such as the gold reward.
        k: samples to choose from.

    Raises:
        TrainingError: unequal lengths, a number that is not finite, or ``k`` outside 1 … n.
    """
    score, value = np.asarray(score_G, np.float64), np.asarray(value_G, np.float64)
    count = len(score)
    if score.shape != value.shape or not (np.isfinite(score).all() and np.isfinite(value).all()):
        raise TrainingError(f"{count} scores and {len(value)} values do not go together, or one is not finite")
    if not 1 <= k <= count:
        raise TrainingError(f"the best of {k} is undefined for {count} scored samples of a prompt")
    chance = np.array([math.comb(place, k - 1) for place in range(count)], dtype=object) / math.comb(count, k)
    _, kind = np.unique(score, return_inverse=True)
    tied = np.bincount(kind, value) / np.bincount(kind)
    order = np.argsort(score, kind="stable")
    return float((chance.astype(np.float64) * tied[kind[order]]).sum())


def max_at_k(value_G: ArrayLike, k: int) -> float:
    """The expected maximum of ``k`` values taken without replacement: :func:`best_of_k` where the score is the value.

    Unbiased for ``E[max of k]`` (maxg@k: Walder & Karkhanis 2025, arXiv 2505.15201, eq. 12).
    """
    return best_of_k(value_G, value_G, k)


def choose(score_G: Sequence[float]) -> int:
    """The sample to keep of several: the highest score, of equal ones the first.

    Raises:
        TrainingError: there are none, or a score is not finite.
    """
    if not len(score_G) or not np.isfinite(np.asarray(score_G, np.float64)).all():
        raise TrainingError(f"the best of {len(score_G)} samples is undefined; every one needs a finite score")
    return int(np.argmax(score_G))
