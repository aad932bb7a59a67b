"""The reference's log-probs where a process of its own computes them: a column that is there when the batch is labelled."""

from dataclasses import replace

import numpy as np
from loop_examples import prompt_of, sample_of

from penstock.core.columns import column_named
from penstock.core.types import Group
from penstock.loops.columns import column_changes
from penstock.loops.columns import written as written_column
from penstock.stream.enrichment import merged
from penstock.stream.lag import masked


class Counting:
    """A scorer whose log-prob of the n-th action of a row is -n."""

    def score(self, units, wanted):
        counts = [int(row.action_T.sum()) for unit in units for row in unit]
        return {"logp": [-np.arange(1, count + 1, dtype=np.float32) for count in counts]}


def written(*samples) -> Group:
    group = Group(prompt_of(0), samples)
    return merged(group, column_changes("reference", Counting(), group))


def read(groups):
    return written_column(groups, column_named("reference"))


def test_the_column_is_read_as_it_was_written():
    (found,) = read([written(sample_of([30, 31], 1.0), sample_of([32], 0.0, place=1))])
    assert [logp_A.tolist() for logp_A in found] == [[-1.0, -2.0], [-1.0]]


def test_actions_that_became_too_old_take_their_log_probs_with_them():
    sample = sample_of([30, 31, 32], 1.0)
    version_T = np.where(sample.action_T, 2, sample.version_T).astype(np.int32)
    version_T[np.flatnonzero(sample.action_T)[0]] = 1
    (found,) = read([masked(written(replace(sample, version_T=version_T)), oldest=2)])
    assert found[0].tolist() == [-2.0, -3.0]


def test_where_one_sample_lacks_the_column_there_is_none():
    group = written(sample_of([30], 1.0), sample_of([32], 0.0, place=1))
    assert read([replace(group, samples=(group.samples[0], sample_of([32], 0.0, place=1)))]) is None
