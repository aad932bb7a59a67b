"""Advantages against values worked out by hand, and the identities that tie the estimators together."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.algos.advantages import generalised_advantages, group_centred, group_normalised, leave_one_out, whiten
from penstock.core.errors import TrainingError

REWARDS = st.lists(st.floats(-10, 10), min_size=2, max_size=8)
ESTIMATORS = [group_centred, group_normalised, leave_one_out]


@pytest.mark.parametrize(
    ("reward_G", "expected"),
    [
        ([1, 0, 0, 0], [0.75, -0.25, -0.25, -0.25]),  # mean 1/4
        ([3, 1], [1, -1]),  # mean 2
        ([5, 5, 5], [0, 0, 0]),
    ],
)
def test_group_centred_subtracts_the_mean(reward_G, expected):
    np.testing.assert_allclose(group_centred(reward_G), expected, atol=1e-12)


@pytest.mark.parametrize(
    ("reward_G", "expected"),
    [
        # mean 1/4; squared deviations 9/16 + 3/16 = 12/16; over 3: 1/4; std 1/2
        ([1, 0, 0, 0], [0.75 / 0.500001, -0.25 / 0.500001, -0.25 / 0.500001, -0.25 / 0.500001]),
        # mean 2; squared deviations 1 + 1 = 2; over 1: 2; std sqrt(2)
        ([3, 1], [1 / (2**0.5 + 1e-6), -1 / (2**0.5 + 1e-6)]),
    ],
)
def test_group_normalised_divides_by_the_sample_deviation_plus_offset(reward_G, expected):
    np.testing.assert_allclose(group_normalised(reward_G), expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("reward_G", "expected"),
    [
        ([3, 1], [2, -2]),  # 3 - 1, 1 - 3
        ([1, 0, 0, 0], [1, -1 / 3, -1 / 3, -1 / 3]),  # 1 - 0, 0 - 1/3
        ([6, 3, 0], [4.5, 0, -4.5]),  # 6 - 3/2, 3 - 6/2, 0 - 9/2
    ],
)
def test_leave_one_out_subtracts_the_mean_of_the_others(reward_G, expected):
    np.testing.assert_allclose(leave_one_out(reward_G), expected, atol=1e-12)


@given(REWARDS)
def test_leave_one_out_is_the_scaled_mean_baseline(reward_G):
    count = len(reward_G)
    others = [(sum(reward_G) - reward) / (count - 1) for reward in reward_G]
    np.testing.assert_allclose(leave_one_out(reward_G), np.subtract(reward_G, others), atol=1e-9)
    np.testing.assert_allclose(leave_one_out(reward_G), count / (count - 1) * group_centred(reward_G), atol=1e-9)


@given(st.integers(2, 9), st.floats(-5, 5))
def test_a_group_of_equal_rewards_has_advantages_of_exactly_zero(count, reward):
    for estimator in ESTIMATORS:
        assert not estimator([reward] * count).any()


@given(REWARDS, st.floats(-5, 5))
def test_advantages_do_not_change_when_all_rewards_shift(reward_G, shift):
    for estimator in (group_centred, leave_one_out):
        np.testing.assert_allclose(estimator(np.add(reward_G, shift)), estimator(reward_G), atol=1e-9)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("reward_G", [[], [1.0]])
def test_fewer_than_two_samples_are_refused(estimator, reward_G):
    with pytest.raises(TrainingError, match="two or more"):
        estimator(reward_G)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_rewards_that_are_not_finite_are_refused(estimator):
    with pytest.raises(TrainingError, match="not finite"):
        estimator([1.0, float("nan")])


def test_generalised_advantages_of_a_finished_sample_by_hand():
    # discount 0.9, lambda 0.5, rewards 1 0 2, values 0.5 1.0 1.5, after the end 0:
    # errors: 1 + 0.9*1.0 - 0.5 = 1.4; 0 + 0.9*1.5 - 1.0 = 0.35; 2 + 0 - 1.5 = 0.5
    # advantages: A2 = 0.5; A1 = 0.35 + 0.45*0.5 = 0.575; A0 = 1.4 + 0.45*0.575 = 1.65875
    advantage_T, return_T = generalised_advantages([1, 0, 2], [0.5, 1.0, 1.5], 0.9, 0.5)
    np.testing.assert_allclose(advantage_T, [1.65875, 0.575, 0.5], rtol=1e-12)
    np.testing.assert_allclose(return_T, [2.15875, 1.575, 2.0], rtol=1e-12)


def test_a_truncated_sample_bootstraps_with_the_value_given():
    # As above with a value of 4 after the last action: its error is 2 + 0.9*4 - 1.5 = 4.1
    # A1 = 0.35 + 0.45*4.1 = 2.195; A0 = 1.4 + 0.45*2.195 = 2.38775
    advantage_T, _ = generalised_advantages([1, 0, 2], [0.5, 1.0, 1.5], 0.9, 0.5, bootstrap=4.0)
    np.testing.assert_allclose(advantage_T, [2.38775, 2.195, 4.1], rtol=1e-12)


STEPS = st.lists(st.tuples(st.floats(-3, 3), st.floats(-3, 3)), min_size=1, max_size=8)


@given(STEPS, st.floats(0, 1))
def test_lambda_one_gives_the_monte_carlo_return_minus_the_value(steps, discount):
    reward_T, value_T = (np.array(column) for column in zip(*steps, strict=True))
    monte_carlo = [sum(discount**later * r for later, r in enumerate(reward_T[now:])) for now in range(len(reward_T))]
    advantage_T, return_T = generalised_advantages(reward_T, value_T, discount, 1.0)
    np.testing.assert_allclose(advantage_T, monte_carlo - value_T, atol=1e-9)
    np.testing.assert_allclose(return_T, monte_carlo, atol=1e-9)


@given(STEPS, st.floats(0, 1))
def test_lambda_zero_gives_the_one_step_error(steps, discount):
    reward_T, value_T = (np.array(column) for column in zip(*steps, strict=True))
    advantage_T, _ = generalised_advantages(reward_T, value_T, discount, 0.0)
    np.testing.assert_allclose(advantage_T, reward_T + discount * np.append(value_T[1:], 0) - value_T, atol=1e-12)


@pytest.mark.parametrize(("reward_T", "value_T"), [([], []), ([1], [1, 2]), ([[1]], [[1]])])
def test_steps_without_one_value_each_are_refused(reward_T, value_T):
    with pytest.raises(TrainingError, match="one value per rewarded step"):
        generalised_advantages(reward_T, value_T, 1.0, 1.0)


@pytest.mark.parametrize(("discount", "lam"), [(1.1, 0.5), (0.9, -0.1)])
def test_coefficients_outside_zero_to_one_are_refused(discount, lam):
    with pytest.raises(TrainingError, match="must lie in"):
        generalised_advantages([1.0], [0.0], discount, lam)


def test_whitening_counts_every_token_once():
    # tokens 1, 2, 3 | 6: mean 3 (not 4, the mean of the samples' means); squared deviations 4+1+0+9 = 14; over 3
    whitened = whiten([np.array([1.0, 2.0, 3.0]), np.array([6.0])])
    scale = (14 / 3 + 1e-8) ** -0.5
    np.testing.assert_allclose(whitened[0], [-2 * scale, -1 * scale, 0], atol=1e-12)
    np.testing.assert_allclose(whitened[1], [3 * scale], atol=1e-12)


def test_whitening_equal_advantages_gives_zeros():
    assert not np.concatenate(whiten([np.full(3, 2.0), np.full(2, 2.0)])).any()


@pytest.mark.parametrize("advantages", [[], [np.array([1.0])]])
def test_whitening_a_single_token_is_refused(advantages):
    with pytest.raises(TrainingError, match="two or more action tokens"):
        whiten(advantages)
