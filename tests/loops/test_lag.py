"""The lag of tokens: hand values."""

import numpy as np
from loop_examples import sample_of

from penstock.core.types import Group, Prompt, PromptKey
from penstock.loops.lag import lag_counts, lag_metrics


def group_of(*samples):
    return Group(Prompt(PromptKey("test", 0, 0), ""), samples)


def drawn_by(*versions, reward=1.0, **changes):
    return sample_of([30] * len(versions), reward, version_T=np.array([-1, *versions], np.int32), **changes)


def test_every_token_counts_by_the_version_that_drew_it():
    groups = [group_of(drawn_by(3, 3, 4), drawn_by(5)), group_of(drawn_by(4, 5))]
    assert lag_counts(groups, 5) == {0: 2, 1: 2, 2: 2}


def test_samples_that_are_not_trained_on_do_not_count():
    failed, greedy = drawn_by(1, 1, reward=None, error="no score"), drawn_by(2, extras={"greedy": True})
    assert lag_counts([group_of(failed, greedy, drawn_by(4))], 5) == {1: 1}


def test_tokens_of_no_version_do_not_count():
    assert lag_counts([group_of(drawn_by(-1, 4))], 5) == {1: 1}
    assert lag_counts([], 5) == {}


def test_mean_and_largest_lag():
    assert lag_metrics({0: 2, 1: 2, 4: 1}) == {"lag/mean": 1.2, "lag/max": 4.0}
    assert lag_metrics({}) == {}
