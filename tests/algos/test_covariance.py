"""Covariance of log-prob and advantage, and the choice of the tokens that an update would make most certain."""

import numpy as np
from algo_examples import group, sample
from hypothesis import given
from hypothesis import strategies as st

from penstock.algos import GRPO, ClipCov, KLCov
from penstock.algos.covariance import covariances, highest, within_band
from penstock.core.types import Row


def row(logp, advantage, first=0, **more):
    tokens_T = np.arange(first, first + len(logp) + 1, dtype=np.int32)
    fields = {"old_logp": np.array(logp), "advantage": np.array(advantage), **more}
    return Row({"tokens_T": tokens_T}, np.arange(len(tokens_T)) > 0, fields)


UNITS = [(row([-1.0, -3.0], [2.0, 2.0]), row([-5.0], [-1.0], first=9))]  # means -3 and 1


def test_covariances_by_hand():
    found = covariances(UNITS)
    assert [part.tolist() for part in found] == [[2.0, 0.0], [4.0]]  # 2 * 1, 0 * 1, -2 * -2


def test_the_learner_s_own_log_probs_are_preferred():
    units = [(row([-9.0, -9.0], [1.0, 3.0], proximal_logp=np.array([-1.0, -3.0])),)]
    assert covariances(units)[0].tolist() == [-1.0, -1.0]


def test_the_highest_share_is_chosen_and_at_least_one():
    chosen = highest(covariances(UNITS), UNITS, 2 / 3)
    assert [part.tolist() for part in chosen] == [[1, 0], [1]]
    assert sum(part.sum() for part in highest(covariances(UNITS), UNITS, 1e-4)) == 1


def test_only_tokens_of_the_band_are_drawn():
    chosen = within_band(covariances(UNITS), UNITS, 1.0, 1.0, 3.0)
    assert [part.tolist() for part in chosen] == [[1, 0], [0]]
    assert not any(part.any() for part in within_band(covariances(UNITS), UNITS, 1.0, 50.0, 60.0))


@given(st.integers(0, 1000), st.permutations(range(6)), st.sampled_from([ClipCov(share=0.3, low=-1.0), KLCov(share=0.3)]))
def test_the_choice_does_not_depend_on_the_order_of_rows(seed, order, objective):
    rng = np.random.default_rng(seed)
    rows = [row(rng.normal(size=3).tolist(), rng.normal(size=3).round(1).tolist(), first=10 * i) for i in range(6)]
    (straight,) = objective.choose([tuple(rows)])
    (turned,) = objective.choose([tuple(rows[i] for i in order)])
    for place, index in enumerate(order):
        np.testing.assert_array_equal(turned[place].fields["covariant"], straight[index].fields["covariant"])


def test_an_empty_batch_chooses_nothing():
    assert ClipCov().choose([]) == []


def test_the_algorithm_marks_its_rows():
    algorithm = GRPO(objective=KLCov(share=0.5), clip=None)
    units = algorithm.label([group(sample([2, 3], 1.0), sample([4], 0.0))], {}, algorithm.initial_coefficients())
    assert sum(int(r.fields["covariant"].sum()) for r in units[0]) == 1
