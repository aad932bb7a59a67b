"""Which tokens an update would make most certain: those whose log-prob and advantage covary (arXiv 2505.22617).

The first-order change of a softmax policy's entropy is minus the covariance of log-prob and advantage, so the few tokens
with the largest share of it are held back. The mean is over the whole batch, hence numpy and labelling time.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

import numpy as np

from penstock.algos.advantages import Array
from penstock.core.types import FloatArray, Unit

Rank = Callable[[Array, Array], Array]


def covariances(units: Sequence[Unit]) -> list[Array]:
    """``(logp - mean logp) * (A - mean A)`` of each action, one array per row; means over all actions of the batch.

    The log-probs are those before the update: ``proximal_logp`` if the rows have it, else those of the drawing policy.
    """
    rows = [row for unit in units for row in unit]
    if not rows:
        return []
    logp = [np.asarray(row.fields.get("proximal_logp", row.fields["old_logp"]), np.float64) for row in rows]
    advantage = [np.asarray(row.fields["advantage"], np.float64) for row in rows]
    mean_logp, mean_advantage = np.concatenate(logp).mean(), np.concatenate(advantage).mean()
    return [(one - mean_logp) * (other - mean_advantage) for one, other in zip(logp, advantage, strict=True)]


def within_band(covariance: Sequence[Array], units: Sequence[Unit], share: float, low: float, high: float) -> list[FloatArray]:
    """1 for ``share`` of all tokens (at least one), sampled among those with ``low <= covariance <= high``; 0 for others."""

    def rank(value: Array, draw: Array) -> Array:
        return np.where((value >= low) & (value <= high), draw, np.inf)

    return _first(covariance, _draws(units), share, rank)


def highest(covariance: Sequence[Array], units: Sequence[Unit], share: float) -> list[FloatArray]:
    """1 for the ``share`` of all tokens (at least one) with the highest covariance, 0 for others."""
    return _first(covariance, _draws(units), share, lambda value, draw: -value)


def _first(covariance: Sequence[Array], draws: Sequence[Array], share: float, rank: Rank) -> list[FloatArray]:
    """1 for the tokens that come first by ``rank(covariance, draw)``, ties by draw; those of rank infinity never come."""
    if not covariance:
        return []
    value, draw = np.concatenate(covariance), np.concatenate(draws)
    order = rank(value, draw)
    first = np.lexsort((draw, order))[: max(1, int(share * len(value)))]
    chosen = np.zeros(len(value), np.float32)
    chosen[first[np.isfinite(order[first])]] = 1
    return np.split(chosen, np.cumsum([len(part) for part in covariance])[:-1])


def _draws(units: Sequence[Unit]) -> list[Array]:
    """A number from [0, 1) per action that depends on the row's tokens alone: not on order, split or who else is there."""
    rows = [row for unit in units for row in unit]
    streams = [np.random.Philox(zlib.crc32(np.ascontiguousarray(row.tokens_T).tobytes())) for row in rows]
    pairs = zip(rows, streams, strict=True)
    return [np.random.Generator(stream).random(int(row.action_T.sum())) for row, stream in pairs]
