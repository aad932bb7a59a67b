"""The learner's divergence from a teacher: micro-batches, whole runs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from learner_examples import assert_same_gradients, gradients, learner_of

import tiny_models
from penstock.algos import Distillation, Divergence
from penstock.core.contracts import Denominator
from penstock.core.errors import TrainingError
from penstock.models.language_policy import LanguagePolicy
from penstock.models.packing import lay_out

REVERSE, LOSS = Divergence(), Distillation().loss()


def units(seed=0, size=6):
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(size):
        length = int(rng.integers(1, 9))
        prompt = tiny_models.tokens(rng, int(rng.integers(1, 9)))
        answer = tiny_models.tokens(rng, length)
        made.append((tiny_models.row(prompt, answer, weight=np.ones(length, np.float32)),))
    return made


def taught(learner, model, between=REVERSE):
    """The learner with a teacher."""
    learner.policy.teacher = LanguagePolicy(model.requires_grad_(False)).teaching(between)
    return learner


def other(model, seed=7):
    tiny_models.randomise(model.network, seed)
    return model


def accumulate(learner, batch, budget=4096):
    micros = lay_out(batch, budget, True)
    for micro in micros:
        learner.accumulate(micro, LOSS, Denominator.of(batch))
    return len(micros), learner.flush()["loss"]


@pytest.mark.parametrize("architecture", ["qwen2", "gpt2"])
def test_micro_batches_give_the_same_divergence_and_gradient(architecture, tiny):
    found = []
    for budget in (4096, 24):
        learner = taught(learner_of(tiny(architecture)), other(tiny(architecture)))
        found.append((*accumulate(learner, units(), budget), gradients(learner.policy.model)))
    assert found[0][0] < found[1][0]
    assert found[0][1] == pytest.approx(found[1][1], abs=1e-5)
    assert_same_gradients(found[1][2], found[0][2])


def test_a_model_does_not_diverge_from_itself(tiny):
    learner = taught(learner_of(tiny()), tiny())
    assert accumulate(learner, units())[1] == pytest.approx(0.0, abs=1e-6)


def test_the_teacher_gets_no_gradient_and_never_changes(tiny):
    teacher = other(tiny())
    learner = taught(learner_of(tiny(), learning_rate=1e-2), teacher)
    before = {name: tensor.clone() for name, tensor in teacher.state_dict().items()}
    accumulate(learner, units())
    learner.step()
    assert all(torch.equal(tensor, before[name]) for name, tensor in teacher.state_dict().items())


@pytest.mark.parametrize("kind", ["reverse", "forward", "jensen-shannon"])
def test_distillation_brings_the_student_to_the_teacher(kind, tiny):
    learner = taught(learner_of(tiny(), learning_rate=1e-2), other(tiny(), seed=3), Divergence(kind=kind))
    seen = []
    for _ in range(12):
        seen.append(accumulate(learner, units())[1])
        learner.step()
    assert seen[-1] < 0.6 * seen[0]


def test_a_divergence_without_a_teacher_is_refused(tiny):
    with pytest.raises(TrainingError, match="teacher"):
        accumulate(learner_of(tiny()), units())
