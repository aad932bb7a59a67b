"""How old tokens are, seen from the weights that train on them: the one place where lag is computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from penstock.core.types import LEFT_OUT, Group, IntArray, Metrics, Sample, Version


class TokenVersions(NamedTuple):
    """The versions that produced a group's action tokens: the oldest, the newest (-1: there is none), and how many tokens."""

    oldest: Version
    newest: Version
    tokens: int

    def lag(self, version: Version) -> int:
        """Versions by which the oldest token is older than ``version``; 0 where no token has a version."""
        return version - self.oldest if self.oldest >= 0 else 0


NO_VERSIONS = TokenVersions(-1, -1, 0)
"""Of a group without actions."""


def token_versions(group: Group) -> TokenVersions:
    """Reads every array of the group, so it is called once per group."""
    version_A = _action_versions(group.samples)
    if not len(version_A):
        return NO_VERSIONS
    return TokenVersions(int(version_A.min()), int(version_A.max()), len(version_A))


def _action_versions(samples: Sequence[Sample]) -> IntArray:
    """``[A]``: the versions of all action tokens of all samples."""
    return np.concatenate([sample.version_T[sample.action_T] for sample in samples] or [np.zeros(0, np.int32)])


def masked(group: Group, oldest: Version) -> Group:
    """The group without actions older than ``oldest``: their tokens stay as context and are not trained on.

    Which ones they were is kept (``LEFT_OUT`` of a sample's extras), because their rewards still belong to the sample.
    """
    return replace(group, samples=tuple(_masked(sample, oldest) for sample in group.samples))


def _masked(sample: Sample, oldest: Version) -> Sample:
    stale_T = sample.action_T & (sample.version_T < oldest)
    if not stale_T.any():
        return sample
    left_out_T = stale_T | sample.extras.get(LEFT_OUT, False)
    return replace(sample, action_T=sample.action_T & ~stale_T, extras={**sample.extras, LEFT_OUT: left_out_T})


def lag_counts(groups: Sequence[Group], version: Version) -> dict[int, int]:
    """How many of a batch's action tokens have which lag, seen from weights of ``version``.

    Counted are the tokens that can be trained on: those of failed and of greedy samples are not, nor tokens of no version.
    """
    version_A = _action_versions(
        [sample for group in groups for sample in group.samples if sample.valid and not sample.extras.get("greedy")]
    )
    lags, counts = np.unique(version - version_A[version_A >= 0], return_counts=True)
    return dict(zip(lags.tolist(), counts.tolist(), strict=True))


def lag_metrics(lags: Mapping[int, int]) -> Metrics:
    """``lag/mean`` and ``lag/max`` of a token, in versions; none where no token has a version."""
    if not lags:
        return {}
    mean = sum(lag * count for lag, count in lags.items()) / sum(lags.values())
    return {"lag/mean": mean, "lag/max": float(max(lags))}
