"""How varied a set of samples is. A policy that climbs a reward tends to say the same things again and again."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.errors import TrainingError


def distinct_ngrams(sequences: Sequence[Sequence[Hashable]], n: int) -> float:
    """Distinct-n: different n-grams over all n-grams of the sequences (Li et al. 2016, arXiv 1510.03055).

    1 where no n-gram comes twice. It falls as there is more text, because the n-grams that a language has run out; so compare
    only sets of as many sequences of about the same length.

    Args:
        sequences: the tokens of each sample. No n-gram spans two of them.
        n: length of the n-grams, 1 or more.

    Raises:
        TrainingError: n is less than 1, or no sequence has n tokens.
    """
    if n < 1:
        raise TrainingError(f"n={n}: an n-gram has at least one token")
    found = [tuple(tokens[at : at + n]) for tokens in sequences for at in range(len(tokens) - n + 1)]
    if not found:
        raise TrainingError(f"distinct_{n} is undefined: none of {len(sequences)} sequences has {n} tokens")
    return len(set(found)) / len(found)


def mean_distance(values_ND: NDArray[Any]) -> float:
    """The mean distance between two of ``N`` arrays, as the root of the mean square over their dimensions; 0 for one alone."""
    count, flat_ND = len(values_ND), np.asarray(values_ND, np.float64).reshape(len(values_ND), -1)
    squares_NN = ((flat_ND[:, None] - flat_ND[None]) ** 2).mean(-1)
    return float(np.sqrt(squares_NN).sum() / (count * (count - 1))) if count > 1 else 0.0
