"""The log-prob gap between learner and generator, against hand values."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from penstock.algos.mismatch import CURRENT, MIXED, OLDER, UNKNOWN, is_sum, mismatch_metrics, mismatch_sums


def sums_of(logp, behaviour, origin):
    found = mismatch_sums(torch.tensor(logp), torch.tensor(behaviour), torch.tensor(origin, dtype=torch.float32))
    return {name: float(value) for name, value in found.items()}


def test_metrics_by_hand():
    """Gaps 0.1 and -0.3 on own tokens, 0.2 on a stale cache, log 2 on an older token; one token is unknown."""
    sums = sums_of(
        [-1.0, -1.3, -0.8, math.log(2) - 3, math.nan], [-1.1, -1.0, -1.0, -3.0, 0.0], [CURRENT, CURRENT, MIXED, OLDER, UNKNOWN]
    )
    weights = [math.exp(0.1), math.exp(-0.3), math.exp(0.2), 2.0]
    assert mismatch_metrics(sums) == {
        "mismatch/mean": pytest.approx(0.2),
        "mismatch/kl": pytest.approx((math.exp(0.1) - 1.1 + math.exp(-0.3) - 0.7) / 2, rel=1e-4),
        "mismatch/max": pytest.approx(0.3),
        "mismatch/tokens": 2.0,
        "mismatch/stale_cache": pytest.approx(0.2),
        "policy/effective_sample_size": pytest.approx(sum(weights) ** 2 / (4 * sum(w * w for w in weights))),
    }


def test_what_no_token_measures_is_missing():
    assert mismatch_metrics(sums_of([-1.0], [-1.0], [OLDER])) == {"policy/effective_sample_size": 1.0}
    assert mismatch_metrics(sums_of([-1.0], [-1.0], [UNKNOWN])) == {}


def test_one_wild_token_is_most_of_the_weight():
    """One weight of 100 among 99 of 1: (100 + 99)² / (100 · (10,000 + 99)) = 3.9%."""
    sums = sums_of([math.log(100)] + [0.0] * 99, [0.0] * 100, [OLDER] * 100)
    assert mismatch_metrics(sums)["policy/effective_sample_size"] == pytest.approx(199**2 / (100 * 10099), rel=1e-4)


@given(st.lists(st.tuples(st.floats(-5, 0), st.floats(-5, 0), st.integers(0, 3)), max_size=12), st.integers(0, 12))
def test_sums_of_micro_batches_are_those_of_the_whole(tokens, cut):
    whole, *parts = (sums_of(*([t[i] for t in some] for i in range(3))) for some in (tokens, tokens[:cut], tokens[cut:]))
    for name, value in whole.items():
        join = max if name.startswith("max/") else sum
        assert is_sum(name)
        assert join(part[name] for part in parts) == pytest.approx(value, rel=1e-4, abs=1e-4)
