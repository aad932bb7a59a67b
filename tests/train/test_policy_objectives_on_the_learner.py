"""Objectives that span a sequence, on the learner: no packing, shared prefix, budget or rank changes their gradient."""

import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from learner_examples import accumulate, assert_same_gradients, gradients, learner_of, some_units

from penstock import algos
from penstock.algos import EntropyBonus, KLPenalty
from penstock.core.contracts import Denominator
from penstock.core.types import Row
from penstock.models.packing import lay_out

KL = KLPenalty(place="loss", estimator="k3", coefficient=0.1, reweight=True)
BONUS = EntropyBonus(coefficient=0.01)
CLIP = (0.2, 0.3)
LOSSES = {
    "gspo": algos.gspo(clip=CLIP, kl=KL, entropy=BONUS).loss(),
    "gspo-token": algos.gspo("sequence-token", clip=CLIP, kl=KL, aggregate="token").loss(),
    "gmpo": algos.gmpo(clip=CLIP, kl=KL).loss(),
    "topr": algos.GRPO(objective=algos.TOPR(), clip=None, kl=KL, entropy=BONUS).loss(),
    "kl-cov": algos.kl_cov(kl=KL).loss(),
}


def labelled(seed):
    """Random units with every field that a policy loss may read; the advantage is one per row."""
    rng = np.random.default_rng(seed)

    def label(row):
        length = int(row.action_T.sum())
        columns = {
            name: rng.normal(-5, 0.3, length).astype(np.float32) for name in ("old_logp", "proximal_logp", "reference_logp")
        }
        columns["advantage"] = np.full(length, rng.normal(), np.float32)
        columns["weight"] = np.full(length, 1 / length, np.float32)
        columns["importance_weight"] = rng.uniform(0, 2, length).astype(np.float32)
        columns["covariant"] = rng.integers(0, 2, length).astype(np.float32)
        return Row(row.columns, row.action_T, {**columns, "kl_coefficient": 0.1, "entropy_coefficient": 0.01})

    return [tuple(label(row) for row in unit) for unit in some_units(seed, groups=(2, 1, 3, 2))]


@pytest.fixture(scope="module")
def fresh(built):
    return lambda: copy.deepcopy(built["qwen2"])


@pytest.mark.parametrize("name", LOSSES)
@settings(max_examples=5, deadline=None)
@given(budget=st.integers(16, 120), seed=st.integers(0, 5), share=st.booleans(), order=st.permutations(range(4)))
def test_neither_budget_nor_sharing_nor_order_changes_the_gradient(name, fresh, budget, seed, share, order):
    units, found, expected = labelled(seed), fresh(), fresh()
    one = accumulate(learner_of(found), [units[place] for place in order], LOSSES[name], budget=budget, share=share)
    whole = accumulate(learner_of(expected), units, LOSSES[name], budget=100_000, share=False)
    assert one == pytest.approx(whole, abs=1e-5)
    assert_same_gradients(gradients(found), gradients(expected))


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_of_two_ranks_add_up_to_that_of_one(name, fresh):
    units, whole = labelled(0), fresh()
    accumulate(learner_of(whole), units, LOSSES[name])
    ranks = []
    for part in (units[:1], units[1:]):
        rank = fresh()
        learner = learner_of(rank)
        for batch in lay_out(part, 4096, True):
            learner.accumulate(batch, LOSSES[name], Denominator.of(units))  # the denominator is that of all ranks
        ranks.append(gradients(rank))
    summed = {parameter: ranks[0][parameter] + ranks[1][parameter] for parameter in ranks[0]}
    assert_same_gradients(summed, gradients(whole))
