"""Advantages against values worked out by hand, and the identities that tie the estimators together."""

from functools import partial
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.algos.advantages import (
    batch_normalised,
    decoupled,
    generalised_advantages,
    group_centred,
    group_normalised,
    leave_one_out,
    max_at_k_advantages,
    n_step_returns,
    optimal_baseline,
    pass_at_k_advantages,
    process_normalised,
    returns_to_go,
    vtrace,
    whiten,
    with_signal,
)
from penstock.core.errors import TrainingError

REWARDS = st.lists(st.floats(-10, 10), min_size=2, max_size=8)
STEPS = st.lists(st.tuples(st.floats(-3, 3), st.floats(-3, 3)), min_size=1, max_size=8)
ESTIMATORS = [group_centred, group_normalised, leave_one_out]
RIGHT = [True, False, False, False]
BY_HAND = [
    (group_centred, ([1, 0, 0, 0],), [0.75, -0.25, -0.25, -0.25]),  # mean 1/4
    (group_centred, ([3, 1],), [1, -1]),  # mean 2
    (group_centred, ([5, 5, 5],), [0, 0, 0]),
    # mean 1/4; squared deviations 9/16 + 3/16 = 12/16; over 3: 1/4; std 1/2
    (group_normalised, ([1, 0, 0, 0],), [0.75 / 0.500001, -0.25 / 0.500001, -0.25 / 0.500001, -0.25 / 0.500001]),
    # mean 2; squared deviations 1 + 1 = 2; over 1: 2; std sqrt(2)
    (group_normalised, ([3, 1],), [1 / (2**0.5 + 1e-6), -1 / (2**0.5 + 1e-6)]),
    (leave_one_out, ([3, 1],), [2, -2]),  # 3 - 1, 1 - 3
    (leave_one_out, ([1, 0, 0, 0],), [1, -1 / 3, -1 / 3, -1 / 3]),  # 1 - 0, 0 - 1/3
    (leave_one_out, ([6, 3, 0],), [4.5, 0, -4.5]),  # 6 - 3/2, 3 - 6/2, 0 - 9/2
    (optimal_baseline, ([1, 0], [1, 3]), [0.75, -0.25]),  # baseline (1*1 + 3*0) / 4
    (optimal_baseline, ([2, 0, 1], [2, 1, 1]), [0.75, -1.25, -0.25]),  # baseline (4 + 0 + 1) / 4
    (optimal_baseline, ([0.1, 0.1], [5, 7]), [0, 0]),
    (returns_to_go, ([1, 2, 3], 1.0), [6, 5, 3]),
    (returns_to_go, ([1, 2, 4], 0.5), [3, 4, 4]),  # 4; 2 + 2; 1 + 2
    (returns_to_go, ([1, 2, 3], 0.0), [1, 2, 3]),
    # k=2: mean 1 - 3/6 = 1/2, deviation 1/2; wrong: (1/2 - 2/3) / (1/2)
    (pass_at_k_advantages, (RIGHT, 2), [1, -1 / 3, -1 / 3, -1 / 3]),
    # k=1: mean 1/4, deviation sqrt(3)/4: the z-score with the population's deviation
    (pass_at_k_advantages, (RIGHT, 1), [3**0.5, -1 / 3**0.5, -1 / 3**0.5, -1 / 3**0.5]),
    (pass_at_k_advantages, ([True, True, False], 2), [0, 0, 0]),  # every pair holds a right one
    (pass_at_k_advantages, ([False, False, False], 2), [0, 0, 0]),
    (pass_at_k_advantages, ([True, True, True], 1), [0, 0, 0]),
    # right k/n; wrong k/n times the chance 1/3 that one of the others is right
    (max_at_k_advantages, ([1, 0, 0, 0], 2, "none"), [1 / 2, 1 / 6, 1 / 6, 1 / 6]),
    # less k/n times the mean of the others: 0 for the right one, 1/3 for the wrong
    (max_at_k_advantages, ([1, 0, 0, 0], 2, "loo-1"), [1 / 2, 0, 0, 0]),
    # less 2/3 of max@2 of the others: 0 and 2/3
    (max_at_k_advantages, ([1, 0, 0, 0], 2, "loo"), [1 / 2, 1 / 6 - 4 / 9, 1 / 6 - 4 / 9, 1 / 6 - 4 / 9]),
]
REFUSED = [
    *((estimator, (reward_G,), "two or more") for estimator in ESTIMATORS for reward_G in ([], [1.0])),
    *((estimator, ([1.0, float("nan")],), "not finite") for estimator in ESTIMATORS),
    (generalised_advantages, ([], [], 1.0, 1.0), "one value per rewarded step"),
    (generalised_advantages, ([1], [1, 2], 1.0, 1.0), "one value per rewarded step"),
    (generalised_advantages, ([[1]], [[1]], 1.0, 1.0), "one value per rewarded step"),
    (generalised_advantages, ([1.0], [0.0], 1.1, 0.5), "must lie in"),
    (generalised_advantages, ([1.0], [0.0], 0.9, -0.1), "must lie in"),
    (n_step_returns, ([1.0], [0.0], 1.0, 0), "."),
    (n_step_returns, ([1.0], [0.0], 1.1, 1), "."),
    (n_step_returns, ([1.0], [0.0, 1.0], 1.0, 1), "."),
    (n_step_returns, ([], [], 1.0, 1), "."),
    (returns_to_go, ([1.0], 1.5), r"discount=1\.5"),
    (whiten, ([],), "two or more action tokens"),
    (whiten, ([np.array([1.0])],), "two or more action tokens"),
    (optimal_baseline, ([1.0, 2.0], [0, 3]), "positive length"),
    (decoupled, ([[1.0]], [1.0]), "two or more scored samples"),
    (pass_at_k_advantages, ([True, False, False], 0), "pass@0 of 3 samples"),
    (pass_at_k_advantages, ([True, False, False], 4), "pass@4 of 3 samples"),
    (max_at_k_advantages, ([1, 2, 3], 1, "loo-1"), "max@1 of 3 samples"),
    (max_at_k_advantages, ([1, 2, 3], 4, "loo-1"), "max@4 of 3 samples"),
    (max_at_k_advantages, ([1, 2, 3], 3, "loo"), "max@3 of 3 samples"),
    (max_at_k_advantages, ([1, 2, 3], 0, "none"), "max@0 of 3 samples"),
    (partial(vtrace, bounds=(1.0, 2.0)), ([1.0], [1.0], [0.0], 1.0), "must"),
    (partial(vtrace, lam=2.0), ([1.0], [1.0], [0.0], 1.0), "must"),
    (partial(vtrace, policy_bound=0.0), ([1.0], [1.0], [0.0], 1.0), "policy_bound"),
    (vtrace, ([1.0, 2.0], [1.0, 1.0], [0.0], 1.0), "one value and log-ratio per reward"),
]


def named(value):
    """The name of a function as an id."""
    function = getattr(value, "func", value)
    return function.__name__ if callable(function) else None


@pytest.mark.parametrize(("function", "arguments", "expected"), BY_HAND, ids=named)
def test_a_value_of_each_sample_by_hand(function, arguments, expected):
    np.testing.assert_allclose(function(*arguments), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("function", "arguments", "problem"), REFUSED, ids=named)
def test_what_is_undefined_is_refused(function, arguments, problem):
    with pytest.raises(TrainingError, match=problem):
        function(*arguments)


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


@given(STEPS, st.floats(0, 1))
def test_lambda_one_gives_the_monte_carlo_return_minus_the_value(steps, discount):
    reward_T, value_T = map(np.array, zip(*steps, strict=True))
    monte_carlo = [sum(discount**later * r for later, r in enumerate(reward_T[now:])) for now in range(len(reward_T))]
    advantage_T, return_T = generalised_advantages(reward_T, value_T, discount, 1.0)
    np.testing.assert_allclose(advantage_T, monte_carlo - value_T, atol=1e-9)
    np.testing.assert_allclose(return_T, monte_carlo, atol=1e-9)


@given(STEPS, st.floats(0, 1))
def test_lambda_zero_gives_the_one_step_error(steps, discount):
    reward_T, value_T = map(np.array, zip(*steps, strict=True))
    advantage_T, _ = generalised_advantages(reward_T, value_T, discount, 0.0)
    np.testing.assert_allclose(advantage_T, reward_T + discount * np.append(value_T[1:], 0) - value_T, atol=1e-12)


def test_whitening_counts_every_token_once():
    # tokens 1, 2, 3 | 6: mean 3 (not 4, the mean of the samples' means); squared deviations 4+1+0+9 = 14; over 3
    whitened = whiten([np.array([1.0, 2.0, 3.0]), np.array([6.0])])
    scale = (14 / 3 + 1e-8) ** -0.5
    np.testing.assert_allclose(whitened[0], [-2 * scale, -1 * scale, 0], atol=1e-12)
    np.testing.assert_allclose(whitened[1], [3 * scale], atol=1e-12)


def test_whitening_equal_advantages_gives_zeros():
    assert not np.concatenate(whiten([np.full(3, 2.0), np.full(2, 2.0)])).any()


@given(REWARDS)
def test_the_optimal_baseline_of_equal_lengths_is_the_mean(reward_G):
    np.testing.assert_allclose(optimal_baseline(reward_G, [7] * len(reward_G)), group_centred(reward_G), atol=1e-9)


@given(st.lists(st.booleans(), min_size=2, max_size=8), st.data())
def test_pass_at_k_is_the_mean_over_all_subsets(right_G, data):
    k = data.draw(st.integers(1, len(right_G)))
    subsets = list(combinations(range(len(right_G)), k))
    reward = np.array([any(right_G[i] for i in subset) for subset in subsets], float)
    if reward.std() == 0:
        expected = np.zeros(len(right_G))
    else:
        scores = (reward - reward.mean()) / reward.std()
        expected = [np.mean([s for s, subset in zip(scores, subsets, strict=True) if i in subset]) for i in range(len(right_G))]
    np.testing.assert_allclose(pass_at_k_advantages(right_G, k), expected, atol=1e-9)


def test_groups_with_signal_are_scaled_up_by_what_flat_ones_take_away():
    # five samples, three of them in groups that tell something
    found = with_signal([np.array([1.0, -1.0, 0.0]), np.zeros(2)])
    np.testing.assert_allclose(found[0], [5 / 3, -5 / 3, 0])
    np.testing.assert_allclose(found[1], [0, 0])


def test_a_batch_of_flat_groups_stays_as_it_is():
    assert [group.tolist() for group in with_signal([np.zeros(2), np.zeros(3)])] == [[0, 0], [0, 0, 0]]


def test_decoupled_rewards_are_normalised_before_they_are_summed():
    # summed first, 0 + 100 and 1 + 0 would be told apart by the second reward alone
    found = decoupled([[0, 1], [100, 0]], [1.0, 1.0])
    np.testing.assert_allclose(found, [0, 0], atol=1e-4)
    half = 0.5**0.5
    np.testing.assert_allclose(decoupled([[0, 1], [100, 0]], [3.0, 1.0]), [-2 * half, 2 * half], rtol=1e-4)


def test_a_reward_that_does_not_apply_adds_nothing_and_shifts_no_mean():
    both = decoupled([[1, 3, float("nan")], [0, 0, 5]], [1.0, 0.0])
    alone = group_normalised([1, 3])
    np.testing.assert_allclose(both, [*alone, 0])
    np.testing.assert_allclose(decoupled([[7, float("nan")]], [1.0]), [0, 0])


@pytest.mark.parametrize(
    ("rewards", "ends", "expected"),
    [
        # steps 1, 3 and 2: mean 2, deviation 1; so -1, 1 and 0, summed from each token on
        ([[1, 0, 3], [0, 2]], None, [[0, 1, 1], [0, 0]]),
        # steps 1 and 0 of the first sample, 1 and 1 of the second: mean 3/4, deviation 1/2; so 1/2, -3/2, 1/2 and 1/2
        ([[0, 1, 0, 0], [1, 0, 1]], None, [[-1, -1, -1.5, -1.5], [1, 0.5, 0.5]]),
        # the same steps, the first sample's end before its last token, and the zero one in the middle
        ([[0, 0, 1, 0], [1, 0, 1]], [[True, False, True, False], [True, False, True]], [[-1, 0.5, 0.5, 0], [1, 0.5, 0.5]]),
    ],
    ids=["over all steps of the group", "a step rewarded with 0 is a step", "steps end where they are said to"],
)
def test_process_rewards_by_hand(rewards, ends, expected):
    found = process_normalised(rewards, None if ends is None else [np.array(end) for end in ends])
    for part, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(part, wanted, atol=1e-5)


@pytest.mark.parametrize("rewards", [[[0.0, 1.0], [1.0]], [[0.0], [0.0]], [[2.0], [0.0, 2.0]], [[2.0]]])
def test_process_rewards_without_a_difference_tell_nothing(rewards):
    assert not any(np.any(part) for part in process_normalised(rewards))


@given(STEPS, st.floats(0, 1), st.floats(-3, 3))
def test_on_policy_v_trace_is_the_n_step_return(steps, discount, bootstrap):
    reward_T, value_T = map(np.array, zip(*steps, strict=True))
    advantage_T, target_T = vtrace(reward_T, value_T, np.zeros(len(steps)), discount, bootstrap=bootstrap)
    ahead = np.append(reward_T, bootstrap)
    expected = [sum(discount**j * r for j, r in enumerate(ahead[t:])) for t in range(len(steps))]
    np.testing.assert_allclose(target_T, expected, atol=1e-9)
    np.testing.assert_allclose(advantage_T, np.subtract(expected, value_T), atol=1e-9)


@given(STEPS, st.floats(0, 1), st.floats(0, 1), st.floats(-3, 3))
def test_on_policy_v_trace_targets_with_lambda_are_the_returns_of_generalised_advantages(steps, discount, lam, bootstrap):
    reward_T, value_T = map(np.array, zip(*steps, strict=True))
    _, target_T = vtrace(reward_T, value_T, np.zeros(len(steps)), discount, lam=lam, bootstrap=bootstrap)
    _, return_T = generalised_advantages(reward_T, value_T, discount, lam, bootstrap=bootstrap)
    np.testing.assert_allclose(target_T, return_T, atol=1e-9)


def test_v_trace_by_hand():
    # ratios 1/2 and 4 (cut to 1), rewards 1 and 2, values 1 and 1, no discount
    # last: error 1 * (2 - 1) = 1, v = 2; first: 1/2 (1 + 1 - 1) + 1/2 * 1 = 1, v = 2
    # advantages: 1 * (2 - 1) = 1; 1/2 (1 + 2 - 1) = 1
    advantage_T, target_T = vtrace([1, 2], [1, 1], [np.log(0.5), np.log(4)], 1.0)
    np.testing.assert_allclose(target_T, [2, 2])
    np.testing.assert_allclose(advantage_T, [1, 1])


def test_v_trace_gives_up_on_tokens_the_policy_would_not_draw():
    advantage_T, target_T = vtrace([5.0], [1.0], [-30.0], 1.0)
    np.testing.assert_allclose((advantage_T, target_T), ([0], [1]), atol=1e-7)


def test_a_batch_s_deviation_scales_all_groups_alike():
    # rewards 1 0 | 4 4: mean 9/4, squared deviations 12.75 in all, over 3
    first, second = batch_normalised([[1, 0], [4, 4]])
    np.testing.assert_allclose(first, [0.5 / (4.25**0.5 + 1e-6), -0.5 / (4.25**0.5 + 1e-6)], rtol=1e-12)
    assert second.tolist() == [0, 0]
    assert batch_normalised([]) == []


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (1, [1 + 0.9 * 1.0, 0 + 0.9 * 1.5, 2 + 0.9 * 4]),
        (2, [1 + 0.81 * 1.5, 0.9 * 2 + 0.81 * 4, 2 + 0.9 * 4]),
        (9, [1 + 0.81 * 2 + 0.729 * 4, 0.9 * 2 + 0.81 * 4, 2 + 0.9 * 4]),
    ],
)
def test_n_step_returns_by_hand(steps, expected):
    advantage_T, return_T = n_step_returns([1, 0, 2], [0.5, 1.0, 1.5], 0.9, steps, bootstrap=4.0)
    np.testing.assert_allclose(return_T, expected, rtol=1e-12)
    np.testing.assert_allclose(advantage_T, np.subtract(expected, [0.5, 1.0, 1.5]), rtol=1e-12)


@given(st.lists(st.integers(-3, 3), min_size=2, max_size=7), st.data())
def test_weights_of_max_at_k_are_sums_over_all_subsets(reward_G, data):
    samples, k = range(len(reward_G)), data.draw(st.integers(1, len(reward_G)))
    subsets = list(combinations(samples, k))
    best = {subset: max(reward_G[i] for i in subset) for subset in subsets}
    expected = [sum(best[s] for s in subsets if i in s) / len(subsets) for i in samples]
    np.testing.assert_allclose(max_at_k_advantages(reward_G, k, "none"), expected, atol=1e-9)
    if k > 1:  # what each sample adds to the subsets that it is in
        less = [sum(max(reward_G[j] for j in s if j != i) for s in subsets if i in s) / len(subsets) for i in samples]
        np.testing.assert_allclose(max_at_k_advantages(reward_G, k), np.subtract(expected, less), atol=1e-9)


def test_v_trace_s_policy_gradient_may_have_a_bound_of_its_own():
    # ratios 1/2 and 4, as above: targets 2 and 2; the last advantage counts min(3, 4) times
    advantage_T, target_T = vtrace([1, 2], [1, 1], [np.log(0.5), np.log(4)], 1.0, policy_bound=3.0)
    np.testing.assert_allclose(target_T, [2, 2])
    np.testing.assert_allclose(advantage_T, [1, 3])
