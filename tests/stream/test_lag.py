"""The lag of tokens: hand values."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stream_examples import generated

from penstock.algos import GRPO, REINFORCE, ReinforcePlusPlus
from penstock.core.types import Group, Prompt, PromptKey
from penstock.stream.lag import NO_VERSIONS, lag_counts, lag_metrics, masked, token_versions


def group_of(*samples):
    return Group(Prompt(PromptKey("test", 0, 0), ""), samples)


def sample_by(*versions, reward=1.0, **changes):
    one = generated(0, versions).samples[0]
    return replace(one if reward is None else one.scored(reward), **changes)


def test_every_token_counts_by_the_version_that_produced_it():
    groups = [group_of(sample_by(3, 3, 4), sample_by(5)), group_of(sample_by(4, 5))]
    assert lag_counts(groups, 5) == {0: 2, 1: 2, 2: 2}


def test_samples_that_are_not_trained_on_do_not_count():
    failed, greedy = sample_by(1, 1, reward=None, error="no score"), sample_by(2, extras={"greedy": True})
    assert lag_counts([group_of(failed, greedy, sample_by(4))], 5) == {1: 1}


def test_tokens_of_no_version_do_not_count():
    assert lag_counts([group_of(sample_by(-1, 4))], 5) == {1: 1}
    assert lag_counts([], 5) == {}


def test_mean_and_largest_lag():
    assert lag_metrics({0: 2, 1: 2, 4: 1}) == {"lag/mean": 1.2, "lag/max": 4.0}
    assert lag_metrics({}) == {}


def test_the_versions_of_a_group_are_those_of_the_action_tokens_of_all_samples():
    assert token_versions(generated(0, [3, 2], [5])) == (2, 5, 3)
    assert token_versions(generated(0, [])) == NO_VERSIONS


def test_a_group_is_as_old_as_its_oldest_token():
    assert token_versions(generated(0, [3, 2], [5])).lag(6) == 4
    assert NO_VERSIONS.lag(6) == 0


def test_masking_leaves_older_actions_out_and_their_tokens_as_context():
    before = generated(0, [1, 2, 3], [3])
    after = masked(before, oldest=2)
    assert [one.action_T.tolist() for one in after.samples] == [[False, False, True, True], [False, True]]
    assert all(np.array_equal(new.tokens_T, old.tokens_T) for new, old in zip(after.samples, before.samples, strict=True))
    assert after.oldest_version == 2


def test_masking_leaves_what_is_young_enough_as_it_is():
    group = generated(0, [2], [3, 4])
    assert all(new is old for new, old in zip(masked(group, oldest=2).samples, group.samples, strict=True))


@given(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=5), min_size=1, max_size=3), st.integers(0, 6))
def test_no_action_left_is_older_and_none_that_is_younger_is_missing(versions, oldest):
    after = masked(generated(0, *versions), oldest)
    assert token_versions(after).tokens == sum(version >= oldest for each in versions for version in each)
    assert after.oldest_version == -1 or after.oldest_version >= oldest


def test_masking_marks_what_it_leaves_out_and_keeps_its_reward_in_place():
    one = generated(0, [0, 0, 5, 5]).samples[0].scored([0.5, 0.0, 0.0, 1.0])
    (after,) = masked(group_of(one), oldest=3).samples
    assert after.reward_T.tolist() == one.reward_T.tolist()
    assert after.extras["left_out_T"].tolist() == (one.action_T & (one.version_T < 3)).tolist()
    (again,) = masked(group_of(after), oldest=6).samples
    assert again.extras["left_out_T"].tolist() == one.action_T.tolist()


@pytest.mark.parametrize("algorithm", [GRPO(), REINFORCE(), ReinforcePlusPlus()])
def test_a_group_with_rewards_per_token_is_labelled_after_masking(algorithm):
    samples = (sample_by(0, 0, 5, 5, reward=[0.5, 0.0, 0.0, 1.0]), sample_by(5, 5, reward=0.0))
    (unit,) = algorithm.label([masked(group_of(*samples), oldest=3)], {}, algorithm.initial_coefficients())
    assert [int(row.action_T.sum()) for row in unit] == [2, 2]
    assert unit[0].fields["reward"] == 1.5
