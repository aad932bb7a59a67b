"""In float64 a learner on ranks is one device's to ten digits; what float32 differs by is float32's, on one device as well."""

from dataclasses import dataclass

import pytest
import torch
from rank_examples import (
    BUDGET,
    LOSSES,
    SCHEDULE,
    STRATEGIES,
    assert_alike,
    batches_for,
    doubled,
    learners,
    ranks_of,
    train,
    widest_gap,
)

import tiny_models
from learner_examples import WeightedLoss, some_units
from penstock.config.strategies import FSDP2, OneDevice
from penstock.core.contracts import Denominator
from penstock.models import outputs as registry
from penstock.models.packing import lay_out

two_ranks = ranks_of(2)


def trained(model, strategy, batches):
    """Losses and final weights (float64) after steps of DPO."""
    with learners(model, [strategy], **SCHEDULE) as (learner,):
        losses = [train(learner, units, LOSSES["DPO"])["loss"] for units in batches]
        return losses, {name: tensor.detach().double().clone() for name, tensor in learner.weights()}


def gaps(ours, theirs):
    """All differences between two sets of weights, in one row."""
    assert ours.keys() == theirs.keys()
    return torch.cat([(ours[name] - theirs[name]).abs().flatten() for name in ours])


def assert_agree_to_ten_digits(model, strategy, algorithm, batches):
    with learners(model, [OneDevice(), strategy], **SCHEDULE) as (one, other):
        assert_alike(one, other, batches, LOSSES[algorithm], within=1e-10)
        assert widest_gap(other.weights(), one.weights()) < 1e-10


PAIRWISE = [(name, list(LOSSES)[at % len(LOSSES)]) for at, name in enumerate(STRATEGIES)] + [("tensor parallel", "GRPO")]
"""Every strategy and every loss; where ranks split matrices, one more."""


@pytest.mark.parametrize(("strategy", "algorithm"), dict.fromkeys(PAIRWISE))
def test_losses_and_weights_over_20_steps_agree_to_ten_digits(strategy, algorithm, tiny):
    strategy = STRATEGIES[strategy]
    batches = batches_for(algorithm, range(20), tiny("llama"))
    counts = {len(lay_out(units, BUDGET, True)) % 2 for units in batches}
    assert counts == {0, 1}, "both even and uneven counts of micro-batches"
    assert_agree_to_ten_digits(lambda: doubled(tiny("llama")), strategy, algorithm, batches)


@pytest.mark.parametrize("architecture", ["qwen2", "gpt_neox"])
@pytest.mark.parametrize("strategy", [FSDP2(tensor_parallel=2), FSDP2(sequence_parallel=2)], ids=repr)
def test_a_vocabulary_that_ranks_do_not_divide(strategy, architecture, text):
    """Tied (qwen2) and apart (gpt_neox), whose biases of keys have no gradient but rounding."""

    def odd():
        return doubled(tiny_models.build(architecture, text, vocab_size=len(text) + 1))

    assert_agree_to_ten_digits(odd, strategy, "SFT", batches_for("SFT", range(5), odd()))


@pytest.mark.parametrize("architecture", ["qwen2"])
def test_float32_is_as_far_from_float64_on_one_device_as_on_ranks_that_split_matrices(architecture, tiny):
    """Rounding decides the sign of a gradient that is next to nothing, and Adam makes a step of it: one weight of 30,000."""
    batches = batches_for("DPO", range(20), tiny(architecture))
    exact, weights = trained(lambda: doubled(tiny(architecture)), OneDevice(), batches)
    for strategy in (OneDevice(), FSDP2(tensor_parallel=2)):
        found, rounded = trained(lambda: tiny(architecture), strategy, batches)
        assert found == pytest.approx(exact, abs=1e-5)
        gap = gaps(rounded, weights)
        assert (gap > 1e-5).sum() <= 2
        assert gap.max() < 1e-3, "a step's learning rate"


@dataclass(frozen=True)
class Chunks:
    """No loss; leaves its rank with chunks of so many logits."""

    elements: int
    needs: frozenset = frozenset({"logp"})

    def __call__(self, outputs, fields, batch, denominator):
        registry.CHUNK_ELEMENTS = self.elements
        return outputs["logp"].sum() * 0.0, {}


@pytest.mark.parametrize("strategy", [FSDP2(tensor_parallel=2), FSDP2(sequence_parallel=2)], ids=repr)
def test_logits_in_chunks_that_are_computed_again_change_nothing(strategy, tiny):
    loss, units = WeightedLoss(frozenset({"logp", "entropy"})), some_units(3)
    before = registry.CHUNK_ELEMENTS
    with learners(lambda: doubled(tiny("llama")), [OneDevice(), strategy]) as (one, other):
        expected = train(one, units, loss)
        batch = lay_out(units, 4096, True)[0]
        other.accumulate(batch, Chunks(1000), Denominator.of(units))  # adds gradients of nothing
        found = train(other, units, loss)
        other.accumulate(batch, Chunks(before), Denominator.of(units))
        other.flush()
    assert before == registry.CHUNK_ELEMENTS
    assert found == {name: pytest.approx(value, abs=1e-10) for name, value in expected.items()}
