"""Samples, groups, keys and errors."""

from dataclasses import replace

import numpy as np
import pytest

from penstock.core.errors import DataError, GenerationError, PenstockError, RewardError, blame
from penstock.core.types import Group, Prompt, PromptKey, Row, Sample, SampleKey

KEY = PromptKey("gsm8k", 0, 17)


def sample(action, versions, place=0):
    action_T = np.array(action, bool)
    length = len(action_T)
    return Sample(
        SampleKey(KEY, place),
        {"tokens_T": np.arange(length, dtype=np.int32)},
        action_T,
        np.zeros(length, np.float32),
        np.array(versions, np.int32),
        "stop",
    )


def test_keys_read_as_paths():
    assert str(SampleKey(KEY, 3)) == "gsm8k/0/17#3"


def test_columns_of_several_axes_have_one_entry_a_step():
    seen_T = np.zeros((3, 2, 2), np.float32)
    fits = replace(sample([0, 1, 1], [-1, 0, 0]), columns={"seen_T": seen_T})
    assert fits.scored(1.0).columns["seen_T"] is seen_T
    with pytest.raises(DataError, match=r"sample gsm8k/0/17#0: column seen_T has 3 entries for 2 steps"):
        replace(sample([0, 1], [-1, 0]), columns={"seen_T": seen_T})


def test_a_policy_without_tokens_says_so():
    with pytest.raises(DataError, match="no column tokens_T; its columns are: action_TD, seen_TO"):
        _ = Row({"seen_TO": np.zeros((1, 2)), "action_TD": np.zeros((1, 3))}, np.ones(1, bool)).tokens_T


@pytest.mark.parametrize(
    ("action", "rewards", "expected"),
    [
        ([0, 1, 1, 0], 2.0, [0, 0, 2, 0]),
        ([0, 1, 0, 1], [0.5, -1.0], [0, 0.5, 0, -1]),
        ([0, 1, 0, 1], np.array([0.5, -1.0]), [0, 0.5, 0, -1]),
    ],
    ids=["a terminal one on the last action", "those of tokens in their order", "those of an array"],
)
def test_rewards_land_on_action_tokens_of_a_sample_of_its_own(action, rewards, expected):
    original = sample(action, [-1, 0, 0, 0])
    scored = original.scored(rewards)
    assert scored.reward_T.tolist() == expected
    assert scored.reward == sum(expected)
    assert (original.reward_T, original.reward) == (None, None)


def test_the_wrong_number_of_token_rewards_is_refused():
    with pytest.raises(ValueError):
        sample([0, 1, 1], [-1, 0, 0]).scored([1.0, 2.0, 3.0])


def test_a_sample_is_valid_once_scored_and_while_nothing_failed():
    fresh = sample([0, 1], [-1, 0])
    assert not fresh.valid
    assert fresh.scored(0.0).valid
    assert not fresh.scored(0.0).failed("reward math timed out").valid
    assert not sample([0, 0], [-1, -1]).scored(1.0).valid, "it has no action"


@pytest.mark.parametrize(
    ("samples", "oldest"),
    [
        ([([0, 1, 1], [-1, 5, 3])], 3),
        ([([0, 0], [-1, -1])], -1),
        ([([0, 1], [-1, 4]), ([0, 1], [-1, 2]), ([0, 0], [-1, -1])], 2),
        ([], -1),
    ],
    ids=["of its actions", "without an action", "of the oldest sample", "without a sample"],
)
def test_the_oldest_version_is_that_of_an_action(samples, oldest):
    members = tuple(sample(action, versions, place) for place, (action, versions) in enumerate(samples))
    assert Group(Prompt(KEY, ""), members).oldest_version == oldest
    assert members[1:] or all(one.oldest_version == oldest for one in members)


def test_blame_names_the_boundary_and_keeps_the_cause():
    with (
        pytest.raises(RewardError, match='reward "math" on gsm8k/0/17: ZeroDivisionError: division by zero') as caught,
        blame(RewardError, 'reward "math" on gsm8k/0/17'),
    ):
        _ = 1 / 0
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert isinstance(caught.value, PenstockError), "every error of a user has one base"


def test_blame_passes_on_what_already_names_its_boundary():
    with pytest.raises(GenerationError, match=r"^too long$"), blame(RewardError, "elsewhere"):
        raise GenerationError("too long")
