"""Scaling and clipping of rewards, and the penalty on overlong answers, by hand."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reward_examples import make_group, make_sample, score

from penstock.config.run import RewardScaling, RewardSpec
from penstock.core.errors import RewardError, SpecError
from penstock.rewards.built_in import overlong
from penstock.rewards.runner import Mixture
from penstock.rewards.scaling import Moments, scaled

NUMBERS = st.lists(st.floats(-100, 100), min_size=1, max_size=6)


def rewarded(*rewards):
    """A group with one sample per reward; None marks a failure."""
    bare = make_group(*["x"] * len(rewards))
    samples = [s.failed("broke") if r is None else s.scored(r) for s, r in zip(bare.samples, rewards, strict=True)]
    return replace(bare, samples=tuple(samples))


def totals(groups):
    return [sample.reward for group in groups for sample in group.samples]


@given(st.lists(NUMBERS, min_size=1, max_size=4))
def test_moments_of_parts_are_those_of_the_whole(parts):
    moments = Moments()
    for part in parts:
        moments = moments.seen(part)
    whole = np.concatenate(parts)
    assert moments.mean == pytest.approx(whole.mean(), abs=1e-9)
    assert moments.deviation == pytest.approx(whole.std(ddof=1) if len(whole) > 1 else 0.0, abs=1e-6)


def test_running_scaling_divides_by_the_deviation_of_all_rewards_so_far():
    spec = RewardScaling(by="running")
    first, moments = scaled([rewarded(0.0, 2.0)], spec, Moments())  # deviation of 0, 2: sqrt 2
    assert totals(first) == pytest.approx([0.0, 2 / 2**0.5])
    second, _ = scaled([rewarded(4.0, 6.0)], spec, moments)  # of 0, 2, 4, 6: sqrt(20/3)
    assert totals(second) == pytest.approx([4 / (20 / 3) ** 0.5, 6 / (20 / 3) ** 0.5])


def test_reference_scaling_keeps_the_deviation_of_the_first_batch():
    spec = RewardScaling(by="reference")
    _, moments = scaled([rewarded(0.0, 2.0)], spec, Moments())
    second, after = scaled([rewarded(40.0, 60.0)], spec, moments)
    assert totals(second) == pytest.approx([40 / 2**0.5, 60 / 2**0.5])
    assert after == moments


def test_a_first_batch_of_equal_rewards_is_no_reference():
    spec = RewardScaling(by="reference")
    first, moments = scaled([rewarded(1.0, 1.0)], spec, Moments())
    second, _ = scaled([rewarded(0.0, 2.0)], spec, moments)  # of 1, 1, 0, 2: sqrt(2/3)
    assert totals(first) == [1.0, 1.0]
    assert totals(second) == pytest.approx([0.0, 2 / (2 / 3) ** 0.5])


def test_a_given_deviation_is_the_reference():
    found, _ = scaled([rewarded(1.0, 3.0)], RewardScaling(by="reference", deviation=4.0), Moments())
    assert totals(found) == [0.25, 0.75]


def test_group_scaling_divides_each_group_by_its_own_deviation():
    found, _ = scaled([rewarded(0.0, 2.0), rewarded(0.0, 20.0)], RewardScaling(by="group"), Moments())
    assert totals(found) == pytest.approx([0.0, 2**0.5, 0.0, 2**0.5])


@pytest.mark.parametrize("by", ["running", "reference", "group"])
def test_rewards_that_are_all_equal_are_left_alone(by):
    found, _ = scaled([rewarded(3.0, 3.0)], RewardScaling(by=by), Moments())
    assert totals(found) == [3.0, 3.0]


def test_a_failed_sample_shifts_no_moment():
    with_failure, without = rewarded(None, 0.0, 2.0), rewarded(0.0, 2.0)
    spec = RewardScaling(by="running")
    assert scaled([with_failure], spec, Moments())[1] == scaled([without], spec, Moments())[1]


def test_a_greedy_baseline_is_scaled_and_shifts_no_moment():
    group = rewarded(0.0, 2.0, 10.0)
    greedy = replace(group.samples[2], extras={"greedy": True})
    found, moments = scaled([replace(group, samples=(*group.samples[:2], greedy))], RewardScaling(by="running"), Moments())
    assert moments.count == 2
    assert totals(found)[2] == pytest.approx(10 / 2**0.5)


def test_clipping_comes_after_scaling_and_acts_on_each_token():
    group = make_group("x")
    group = replace(group, samples=(group.samples[0].scored([8.0, -8.0, 1.0]),))
    found, _ = scaled([group], RewardScaling(by="reference", deviation=2.0, clip=3.0), Moments())
    assert found[0].samples[0].reward_T[2:].tolist() == [3.0, -3.0, 0.5]


@pytest.mark.parametrize(
    "fields", [{"clip": -1.0}, {"by": "reference", "deviation": -1.0}, {"by": "running", "deviation": 1.0}]
)
def test_impossible_scalings_are_refused(fields):
    with pytest.raises(SpecError, match=r"scaling\."):
        RewardScaling(**fields)


@pytest.mark.parametrize(("length", "expected"), [(1, 0.0), (6, 0.0), (7, -0.25), (8, -0.5), (10, -1.0), (15, -1.0)])
def test_the_penalty_on_overlong_answers_by_hand(length, expected):
    # longest 10, buffer 4: nothing up to 6, then a quarter a token
    assert overlong(make_sample(actions=length), {}, longest=10, buffer=4) == pytest.approx(expected)


def test_an_impossible_buffer_is_refused():
    with pytest.raises(RewardError, match="0 < buffer <= longest"):
        overlong(make_sample(), {}, longest=4, buffer=5)


def test_the_penalty_is_a_reward_of_a_mixture_by_name():
    reward = Mixture((RewardSpec(function="overlong", options={"longest": 3, "buffer": 2}),))
    assert [sample.reward for sample in score(reward, make_group("x")).samples] == [-1.0]
