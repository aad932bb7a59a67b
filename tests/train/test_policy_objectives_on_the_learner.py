"""Objectives that span a sequence, on the learner: no packing, shared prefix, budget or rank changes their gradient."""

import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learner_examples import LAYOUTS, assert_layout_changes_nothing, assert_ranks_add_up, learner_of, some_units
from penstock import algos
from penstock.algos import EntropyBonus, KLPenalty

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


def fields(rng, length):
    """Every field that a policy loss may read; the advantage is one per row."""
    policies = {
        name: rng.normal(-5, 0.3, length).astype(np.float32) for name in ("old_logp", "proximal_logp", "reference_logp")
    }
    return policies | {
        "advantage": np.full(length, rng.normal(), np.float32),
        "weight": np.full(length, 1 / length, np.float32),
        "importance_weight": rng.uniform(0, 2, length).astype(np.float32),
        "covariant": rng.integers(0, 2, length).astype(np.float32),
        "kl_coefficient": 0.1,
        "entropy_coefficient": 0.01,
    }


@pytest.fixture(scope="module")
def fresh(built):
    return lambda: learner_of(copy.deepcopy(built["qwen2"]))


@pytest.mark.parametrize("name", LOSSES)
@settings(max_examples=5)
@given(layout=LAYOUTS, seed=st.integers(0, 5))
def test_neither_budget_nor_sharing_nor_order_changes_the_gradient(name, fresh, layout, seed):
    assert_layout_changes_nothing(fresh, some_units(seed, (2, 1, 3, 2), fields), LOSSES[name], **layout)


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_of_two_ranks_add_up_to_that_of_one(name, fresh):
    assert_ranks_add_up(fresh, some_units(0, (2, 1, 3, 2), fields), LOSSES[name])
