"""Divergences of whole distributions: hand values, identities, gradients, and the spec that chooses one."""

import math

import pytest
import torch
from algo_examples import group, sample
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck

from penstock.algos import GRPO, PPO, Distillation, Divergence, KLPenalty
from penstock.algos.divergences import forward_kl, jensen_shannon, reverse_kl
from penstock.config.run import DataSpec, ModelSpec, Online, RewardSpec
from penstock.core.contracts import Denominator
from penstock.core.errors import SpecError

LN2, LN3 = math.log(2), math.log(3)


def logp(*probabilities):
    return torch.tensor([probabilities], dtype=torch.float64).log()


HALF, SKEWED, SURE = logp(0.5, 0.5), logp(0.75, 0.25), logp(1.0, 0.0)


@pytest.mark.parametrize(
    ("student", "teacher", "reverse", "forward"),
    [
        (HALF, HALF, 0.0, 0.0),
        (HALF, SKEWED, LN2 - LN3 / 2, 0.75 * LN3 - LN2),  # ½ ln(⅔) + ½ ln 2; ¾ ln(3/2) + ¼ ln(½)
        (SURE, HALF, LN2, math.inf),  # a token the student rules out: 0 · ln 0 is 0 one way, infinite the other
        (HALF, SURE, math.inf, LN2),
    ],
)
def test_kl_by_hand(student, teacher, reverse, forward):
    assert reverse_kl(student, teacher).item() == pytest.approx(reverse)
    assert forward_kl(student, teacher).item() == pytest.approx(forward)


@pytest.mark.parametrize(
    ("student", "teacher", "mixture", "divergence"),
    [
        (HALF, HALF, 0.3, 0.0),
        (SURE, logp(0.0, 1.0), 0.5, LN2),  # nothing in common: the largest there is
        (SURE, HALF, 0.5, 0.75 * math.log(4 / 3)),  # M = (¾, ¼): ½ (½ ln ⅔ + ½ ln 2) + ½ ln 4/3
    ],
)
def test_jensen_shannon_by_hand(student, teacher, mixture, divergence):
    assert jensen_shannon(student, teacher, mixture).item() == pytest.approx(divergence)


def test_jensen_shannon_tends_to_both_kls():
    assert (jensen_shannon(HALF, SKEWED, 1e-6) / 1e-6).item() == pytest.approx(forward_kl(HALF, SKEWED).item(), rel=1e-4)
    assert (jensen_shannon(HALF, SKEWED, 1 - 1e-6) / 1e-6).item() == pytest.approx(reverse_kl(HALF, SKEWED).item(), rel=1e-4)


@given(st.integers(0, 10_000), st.floats(0.05, 0.95))
def test_divergences_are_never_negative_and_jensen_shannon_is_bounded(seed, mixture):
    generator = torch.Generator().manual_seed(seed)
    one, other = (
        (3 * torch.randn(4, 6, generator=generator, dtype=torch.float64)).log_softmax(-1),
        torch.randn(4, 6, generator=generator, dtype=torch.float64).log_softmax(-1),
    )
    for found in (reverse_kl(one, other), forward_kl(one, other), jensen_shannon(one, other, mixture)):
        assert (found >= -1e-12).all()
    assert (jensen_shannon(one, other, mixture) <= LN2).all()
    torch.testing.assert_close(jensen_shannon(one, other, mixture), jensen_shannon(other, one, 1 - mixture))


@pytest.mark.parametrize("kind", ["reverse", "forward", "jensen-shannon"])
def test_gradients(kind):
    generator = torch.Generator().manual_seed(0)
    teacher = torch.randn(3, 5, generator=generator, dtype=torch.float64).log_softmax(-1)
    student = torch.randn(3, 5, generator=generator, dtype=torch.float64).requires_grad_()
    assert gradcheck(lambda x: Divergence(kind=kind, mixture=0.3)(x.log_softmax(-1), teacher), (student,))


def test_distillation_trains_on_answers_of_valid_samples_only():
    bad = sample([5], 1.0, error="RewardError: none")
    (unit,) = Distillation().label([group(sample([2, 3], 0.0, prompt=(1, 4)), bad)], {}, {})
    (row,) = unit
    assert row.action_T.tolist() == [False, False, True, True]


FULL = KLPenalty(place="loss", estimator="full", coefficient=0.5)


@pytest.mark.parametrize("algorithm", [GRPO(kl=FULL), PPO(kl=FULL)])
def test_the_full_kl_to_the_reference_joins_any_policy_loss(algorithm):
    assert algorithm.reference
    assert "reference" not in algorithm.needs
    assert "divergence" in algorithm.loss().needs
    assert algorithm.teacher == Divergence(kind="reverse")


def test_the_full_kl_is_weighed_by_its_coefficient():
    zero = torch.zeros(2)
    fields = {"advantage": zero, "old_logp": zero, "weight": torch.ones(2), "kl_coefficient": torch.tensor([0.5])}
    batch = type("Batch", (), {"row_A": torch.tensor([0, 0])})
    outputs = {"logp": zero, "divergence": torch.tensor([1.0, 3.0])}
    loss, metrics = GRPO(kl=FULL).loss()(outputs, fields, batch, Denominator(tokens=2, rows=1, units=1))
    assert loss.item() == pytest.approx(0.5 * (1 + 3) / 2)
    assert metrics["kl/loss"].item() == pytest.approx(1.0)


def test_distillation_without_a_teacher_is_refused():
    with pytest.raises(SpecError, match="needs a teacher"):
        Online(
            name="distil",
            model=ModelSpec(),
            data=DataSpec(source="x.jsonl"),
            rewards=(RewardSpec(function="exact_match"),),
            algorithm=Distillation(),
        )
