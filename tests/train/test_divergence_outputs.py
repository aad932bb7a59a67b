"""The learner's divergence from a teacher: chunks, micro-batches, whole runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from learner_examples import assert_same_gradients, gradients, learner_of

import tiny_models
from penstock.algos import Distillation, Divergence
from penstock.core.errors import TrainingError
from penstock.data.layout import count, lay_out
from penstock.train import token_scores
from penstock.train.divergence_outputs import divergence_outputs
from penstock.train.learner import Scoring

LOSS = Distillation().loss()


def units(seed=0, size=6):
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(size):
        length = int(rng.integers(1, 9))
        prompt = tiny_models.tokens(rng, int(rng.integers(1, 9)))
        answer = tiny_models.tokens(rng, length)
        made.append((tiny_models.row(prompt, answer, weight=np.ones(length, np.float32)),))
    return made


def other(model, seed=7):
    tiny_models.randomise(model.network, seed)
    return Scoring(model.requires_grad_(False), lay_out)


def accumulate(learner, batch, budget=4096, loss=LOSS):
    micros = lay_out(batch, budget, True)
    return len(micros), sum(learner.accumulate(micro, loss, count(batch))["loss"] for micro in micros)


@pytest.mark.parametrize("kind", ["reverse", "jensen-shannon"])
@pytest.mark.parametrize("rows", [1, 2, 3, 7])
def test_chunks_change_neither_divergences_nor_gradients(monkeypatch, rows, kind):
    generator = torch.Generator().manual_seed(0)
    hidden, teacher = torch.randn(7, 4, generator=generator), torch.randn(7, 6, generator=generator)
    weight, teacher_weight = torch.randn(5, 4, generator=generator), torch.randn(5, 6, generator=generator)

    def run(elements):
        monkeypatch.setattr(token_scores, "CHUNK_ELEMENTS", elements)
        h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        found = divergence_outputs(
            h,
            lambda x: x @ w.T,
            teacher,
            lambda x: x @ teacher_weight.T,
            Divergence(kind=kind),
            vocabulary=5,
            temperature=0.7,
        )
        found.sin().sum().backward()
        return found.detach(), h.grad, w.grad

    for found, expected in zip(run(2 * 5 * rows), run(1 << 20), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("architecture", ["qwen2", "gpt2"])
def test_micro_batches_give_the_same_divergence_and_gradient(architecture, tiny):
    found = []
    for budget in (4096, 24):
        learner = learner_of(tiny(architecture))
        learner.teacher = other(tiny(architecture))
        found.append((*accumulate(learner, units(), budget), gradients(learner.model)))
    assert found[0][0] < found[1][0]
    assert found[0][1] == pytest.approx(found[1][1], abs=1e-5)
    assert_same_gradients(found[1][2], found[0][2])


def test_a_model_does_not_diverge_from_itself(tiny):
    learner = learner_of(tiny())
    learner.teacher = Scoring(tiny().requires_grad_(False), lay_out)
    assert accumulate(learner, units())[1] == pytest.approx(0.0, abs=1e-6)


def test_the_teacher_gets_no_gradient_and_never_changes(tiny):
    learner = learner_of(tiny(), learning_rate=1e-2)
    learner.teacher = other(tiny())
    before = {name: tensor.clone() for name, tensor in learner.teacher.model.state_dict().items()}
    accumulate(learner, units())
    learner.step()
    assert all(torch.equal(tensor, before[name]) for name, tensor in learner.teacher.model.state_dict().items())


@pytest.mark.parametrize("kind", ["reverse", "forward", "jensen-shannon"])
def test_distillation_brings_the_student_to_the_teacher(kind, tiny):
    learner, loss = learner_of(tiny(), learning_rate=1e-2), replace(LOSS, divergence=Divergence(kind=kind))
    learner.teacher = other(tiny(), seed=3)
    seen = []
    for _ in range(12):
        seen.append(accumulate(learner, units(), loss=loss)[1])
        learner.step()
    assert seen[-1] < 0.6 * seen[0]


def test_a_divergence_without_a_teacher_is_refused(tiny):
    with pytest.raises(TrainingError, match="teacher"):
        accumulate(learner_of(tiny()), units())
