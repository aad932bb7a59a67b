"""The learner's divergence from a teacher: micro-batches, whole runs."""

from __future__ import annotations

import pytest

import tiny_models
from learner_examples import (
    accumulate,
    assert_equal_bits,
    assert_layout_changes_nothing,
    evenly,
    learner_of,
    some_units,
    weights_of,
)
from penstock.algos import Distillation, Divergence
from penstock.core.errors import TrainingError
from penstock.models.language_policy import LanguagePolicy
from penstock.models.packing import lay_out

REVERSE, LOSS = Divergence(), Distillation().loss()
UNITS = some_units(groups=(1,) * 6, fields=evenly)


def taught(learner, model, between=REVERSE):
    """The learner with a teacher."""
    learner.policy.teacher = LanguagePolicy(model.requires_grad_(False)).teaching(between)
    return learner


def other(model, seed=7):
    tiny_models.randomise(model.network, seed)
    return model


@pytest.mark.parametrize("architecture", ["qwen2", "gpt2"])
def test_micro_batches_give_the_same_divergence_and_gradient(architecture, tiny):
    assert len(lay_out(UNITS, 24, True)) > 1
    assert_layout_changes_nothing(
        lambda: taught(learner_of(tiny(architecture)), other(tiny(architecture))), UNITS, LOSS, budget=24
    )


def test_a_model_does_not_diverge_from_itself(tiny):
    learner = taught(learner_of(tiny()), tiny())
    assert accumulate(learner, UNITS, LOSS) == pytest.approx(0.0, abs=1e-6)


def test_the_teacher_gets_no_gradient_and_never_changes(tiny):
    teacher = other(tiny())
    learner = taught(learner_of(tiny(), learning_rate=1e-2), teacher)
    before = weights_of(teacher)
    accumulate(learner, UNITS, LOSS)
    learner.step()
    assert_equal_bits(weights_of(teacher), before)


@pytest.mark.parametrize("kind", ["reverse", "forward", "jensen-shannon"])
def test_distillation_brings_the_student_to_the_teacher(kind, tiny):
    learner = taught(learner_of(tiny(), learning_rate=1e-2), other(tiny(), seed=3), Divergence(kind=kind))
    seen = []
    for _ in range(12):
        seen.append(accumulate(learner, UNITS, LOSS))
        learner.step()
    assert seen[-1] < 0.6 * seen[0]


def test_a_divergence_without_a_teacher_is_refused(tiny):
    with pytest.raises(TrainingError, match="teacher"):
        accumulate(learner_of(tiny()), UNITS, LOSS)
