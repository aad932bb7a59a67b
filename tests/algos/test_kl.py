"""Estimators of the KL and the controllers of its coefficient."""

import numpy as np
import pytest
import torch

from penstock.algos.kl import K3_LIMIT, KLPenalty, absolute, adaptive, k1, k2, k3
from penstock.core.errors import TrainingError

POLICY = np.array([0.5, 0.3, 0.2])
REFERENCE = np.array([0.4, 0.4, 0.2])
# KL(policy || reference) = 0.5 ln(5/4) + 0.3 ln(3/4) + 0.2 ln 1
KL = 0.5 * np.log(1.25) + 0.3 * np.log(0.75)


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        (k1, [0.5, -0.5]),  # -1 - -1.5, -2 - -1.5
        (k2, [0.125, 0.125]),
        (k3, [np.exp(-0.5) + 0.5 - 1, np.exp(0.5) - 0.5 - 1]),  # d = reference - policy = -0.5, 0.5
        (absolute, [0.5, 0.5]),
    ],
)
def test_estimators_by_hand(estimator, expected):
    logp, reference_logp = np.array([-1.0, -2.0]), np.array([-1.5, -1.5])
    np.testing.assert_allclose(estimator(logp, reference_logp), expected, rtol=1e-12)


@pytest.mark.parametrize("estimator", [k1, k2, k3, absolute])
def test_numpy_and_torch_give_the_same_numbers(estimator):
    logp, reference_logp = np.linspace(-4, 0, 9), np.linspace(0, -6, 9)
    torch_result = estimator(torch.tensor(logp), torch.tensor(reference_logp)).numpy()
    np.testing.assert_allclose(estimator(logp, reference_logp), torch_result, rtol=1e-12)


@pytest.mark.parametrize("estimator", [k1, k3])
def test_k1_and_k3_are_unbiased_over_samples_of_the_policy(estimator):
    expectation = (POLICY * estimator(np.log(POLICY), np.log(REFERENCE))).sum()
    assert expectation == pytest.approx(KL, rel=1e-12)


def test_k2_agrees_with_the_kl_to_second_order():
    # Halving the distance between the distributions shrinks the gap between k2 and the KL by about eight (third order).
    gaps = []
    for step in (0.1, 0.05):
        reference = POLICY + step * np.array([1.0, -0.7, -0.3])
        true_kl = (POLICY * np.log(POLICY / reference)).sum()
        gaps.append(abs((POLICY * k2(np.log(POLICY), np.log(reference))).sum() - true_kl))
    assert gaps[1] < gaps[0] / 6


def test_k3_with_the_sign_turned_round_estimates_another_divergence():
    # E[p/q - 1 - ln(p/q)] = chi² - KL, which is what one gets from mixing up the two arguments.
    wrong = (POLICY * k3(np.log(REFERENCE), np.log(POLICY))).sum()
    chi_squared = ((POLICY - REFERENCE) ** 2 / REFERENCE).sum()
    assert wrong == pytest.approx(chi_squared - KL, rel=1e-9)
    assert wrong != pytest.approx(KL, rel=1e-2)


def test_k3_is_never_negative_even_for_tiny_differences():
    logp = np.linspace(-1e-7, 1e-7, 101, dtype=np.float32)
    assert (k3(logp, np.zeros_like(logp)) >= 0).all()


def test_k3_stays_finite_for_a_token_the_policy_has_given_up():
    assert k3(np.array([-200.0]), np.array([-1.0]))[0] == K3_LIMIT


def expected_gradient(estimator):
    """The exact expectation over tokens of the policy of an estimator's own gradient, and the gradient of the true KL."""
    logits = torch.tensor(np.log(POLICY)).requires_grad_()
    reference = torch.tensor(np.log(REFERENCE))
    logp = logits.log_softmax(-1)
    own = torch.autograd.grad((torch.tensor(POLICY) * estimator(logp, reference)).sum(), logits, retain_graph=True)[0]
    true = torch.autograd.grad((logp.exp() * (logp - reference)).sum(), logits)[0]
    return own, true


def test_the_gradient_of_k2_is_that_of_the_kl_in_expectation():
    torch.testing.assert_close(*expected_gradient(k2), rtol=1e-10, atol=1e-12)


def test_the_gradient_of_k1_vanishes_in_expectation():
    own, true = expected_gradient(k1)
    assert own.abs().max() < 1e-12 < true.abs().max()


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        (6.6, 0.1 * (1 + 0.1 * 64 / 1000)),  # 10 % above the target of 6
        (60.0, 0.1 * (1 + 0.2 * 64 / 1000)),  # error clipped to +0.2
        (0.0, 0.1 * (1 - 0.2 * 64 / 1000)),  # error -1 clipped to -0.2
        (-3.0, 0.1 * (1 - 0.2 * 64 / 1000)),  # an estimate may be negative
        (6.0, 0.1),
    ],
)
def test_the_adaptive_controller_by_hand(measured, expected):
    assert adaptive(0.1, measured, 64, target=6.0, horizon=1000) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("measured", "rows", "problem"),
    [(6.0, 5000, "too short"), (float("nan"), 8, "measured KL is nan")],
    ids=["a horizon that could turn the coefficient negative", "a KL that is not finite"],
)
def test_what_the_adaptive_controller_cannot_follow_is_refused(measured, rows, problem):
    with pytest.raises(TrainingError, match=problem):
        adaptive(0.1, measured, rows, target=6.0, horizon=1000)


@pytest.mark.parametrize(("coefficient", "needs"), [(0.0, set()), (0.1, {"reference"})])
def test_a_penalty_needs_the_reference_where_it_is_on(coefficient, needs):
    assert KLPenalty(place="reward", coefficient=coefficient).needs == needs


def test_a_control_that_would_drop_the_penalty_is_refused():
    with pytest.raises(TrainingError, match="initial_coefficients"):
        KLPenalty(place="reward", coefficient=0.1).current({})
