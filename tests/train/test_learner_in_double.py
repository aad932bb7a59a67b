"""Learners in float64: no split, layout or order changes loss or gradient by more than 1e-6 of the largest entry."""

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tiny_t5
from learner_examples import LAYOUTS, assert_layout_changes_nothing, assert_ranks_add_up, learner_of, some_units


@pytest.fixture(scope="module")
def double(built, text):
    """``double(architecture)``: makes learners over one model in float64."""
    models = {**built, "t5": tiny_t5.build(text)}
    return lambda architecture: lambda: learner_of(copy.deepcopy(models[architecture]).double())


@pytest.mark.parametrize("architecture", ["qwen2", "gpt2", "t5"])
@settings(max_examples=8)
@given(layout=LAYOUTS, seed=st.integers(0, 5))
def test_no_micro_batch_sharing_or_order_changes_loss_or_gradient(double, architecture, layout, seed):
    assert_layout_changes_nothing(double(architecture), some_units(seed, (2, 1, 3, 2)), within=1e-6, **layout)


@pytest.mark.parametrize("architecture", ["qwen2", "t5"])
def test_ranks_that_share_the_units_add_up(double, architecture):
    assert_ranks_add_up(double(architecture), some_units(4, (2, 3, 1)), within=1e-6)
