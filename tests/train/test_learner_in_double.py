"""Whole models in float64: no split, layout or order changes loss or gradient by more than 1e-6 of the largest entry."""

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from learner_examples import WeightedLoss, assert_same_gradients, gradients, some_units

import tiny_t5
from penstock.core.contracts import Denominator
from penstock.models.language_policy import LanguagePolicy
from penstock.models.packing import lay_out
from penstock.train.learner import on_device

LOGP = WeightedLoss(frozenset({"logp"}))


@pytest.fixture(scope="module")
def double(built, text):
    """``double(architecture)``: a model of its own in float64, the same every time."""
    models = {**built, "t5": tiny_t5.build(text)}
    return lambda architecture: copy.deepcopy(models[architecture]).double()


def gradient_of(model, units, denominator=None, budget=4096, share=True):
    """Loss and gradients over all micro-batches, in the model's own type; the learner's masters are float32."""
    total = 0.0
    for batch in lay_out(units, budget, share):
        seen, outputs = on_device(batch, model.device), LanguagePolicy(model).outputs(batch, LOGP.needs)
        value, _ = LOGP(outputs, seen.fields, seen, denominator or Denominator.of(units))
        value.backward()
        total += value.item()
    return total, gradients(model)


@pytest.mark.parametrize("architecture", ["qwen2", "gpt2", "t5"])
@settings(max_examples=8)
@given(budget=st.integers(16, 120), seed=st.integers(0, 5), share=st.booleans(), order=st.permutations(range(4)))
def test_no_micro_batch_sharing_or_order_changes_loss_or_gradient(double, architecture, budget, seed, share, order):
    units = some_units(seed, groups=(2, 1, 3, 2))
    whole, expected = gradient_of(double(architecture), units, budget=100_000, share=False)
    loss, found = gradient_of(double(architecture), [units[place] for place in order], budget=budget, share=share)
    assert loss == pytest.approx(whole, abs=1e-6)
    assert_same_gradients(found, expected, within=1e-6)


@pytest.mark.parametrize("architecture", ["qwen2", "t5"])
def test_ranks_that_share_the_units_add_up(double, architecture):
    units = some_units(4, groups=(2, 3, 1))
    _, expected = gradient_of(double(architecture), units)
    one, other = (gradient_of(double(architecture), part, Denominator.of(units))[1] for part in (units[:1], units[1:]))
    assert_same_gradients({name: one[name] + other[name] for name in one}, expected, within=1e-6)
