"""How old the weights were that drew a batch's tokens, seen from the weights that train on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from penstock.core.types import Group, Metrics, Version


def lag_counts(groups: Sequence[Group], version: Version) -> dict[int, int]:
    """How many of a batch's drawn tokens have which lag: ``version`` less the version that drew the token.

    Counted are the tokens that can be trained on: those of failed and of greedy samples are not, nor tokens of no version.
    """
    samples = [sample for group in groups for sample in group.samples if sample.valid and not sample.extras.get("greedy")]
    drawn_T = np.concatenate([sample.version_T[sample.action_T] for sample in samples] or [np.zeros(0, np.int32)])
    lags, counts = np.unique(version - drawn_T[drawn_T >= 0], return_counts=True)
    return dict(zip(lags.tolist(), counts.tolist(), strict=True))


def lag_metrics(lags: Mapping[int, int]) -> Metrics:
    """``lag/mean`` and ``lag/max`` of a token, in versions; none where no token has a version."""
    if not lags:
        return {}
    mean = sum(lag * count for lag, count in lags.items()) / sum(lags.values())
    return {"lag/mean": mean, "lag/max": float(max(lags))}
