"""What stages write on the samples of a group, and what is left of one whose oldest tokens are not trained on."""

from dataclasses import replace

import numpy as np
import pytest
from flow_examples import drawn, scored
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import StreamError
from penstock.core.types import Group
from penstock.stream.columns import actions, changes, masked, merged


def with_extras(group, **extras):
    return Group(group.prompt, tuple(replace(one, extras={**one.extras, **extras}) for one in group.samples))


def test_a_reward_is_merged_into_every_sample():
    plain = drawn(0, [0, 0], [0])
    found = changes(plain, scored(plain, 2.0, 3.0))
    assert [one.reward for one in merged(plain, found).samples] == [2.0, 3.0]
    assert [one.reward_T.tolist() for one in merged(plain, found).samples] == [[0, 0, 2.0], [0, 3.0]]


def test_a_change_holds_only_the_extras_that_are_new():
    plain = with_extras(drawn(0, [0]), prompt="long", shared="old")
    (change,) = changes(plain, with_extras(plain, shared="new", reference=1.5))
    assert change["extras"] == {"shared": "new", "reference": 1.5}


def test_a_change_does_not_hold_the_tokens():
    plain = drawn(0, [0])
    (change,) = changes(plain, scored(plain, 1.0))
    assert set(change) == {"reward_T", "error", "extras"}


def test_two_stages_that_begin_at_the_same_group_do_not_undo_each_other():
    plain = drawn(0, [0])
    reward, reference = changes(plain, scored(plain, 1.0)), changes(plain, with_extras(plain, reference_logp=0.5))
    for order in ((reward, reference), (reference, reward)):
        group = plain
        for found in order:
            group = merged(group, found)
        assert group.samples[0].reward == 1.0
        assert group.samples[0].extras == {"reference_logp": 0.5}


def test_an_error_that_is_there_stays():
    plain = drawn(0, [0])
    failed = Group(plain.prompt, (plain.samples[0].failed("the tool broke"),))
    (one,) = merged(failed, [{"error": "the reward broke"}]).samples
    assert one.error == "the tool broke"


def test_a_later_error_marks_its_sample_only():
    first, second = merged(drawn(0, [0], [0]), [{}, {"error": "the reward broke"}]).samples
    assert (first.error, second.error) == (None, "the reward broke")


def test_one_finding_too_few_is_refused():
    with pytest.raises(StreamError, match="test/0/7 has 2 samples, but a stage wrote about 1"):
        merged(drawn(7, [0], [0]), [{}])


def test_actions_are_counted_over_all_samples_without_the_prompt():
    assert actions(drawn(0, [0, 0], [0])) == 3


def test_masking_leaves_older_actions_out_and_their_tokens_as_context():
    before = drawn(0, [1, 2, 3], [3])
    after = masked(before, oldest=2)
    assert [one.action_T.tolist() for one in after.samples] == [[False, False, True, True], [False, True]]
    assert all(np.array_equal(new.tokens_T, old.tokens_T) for new, old in zip(after.samples, before.samples, strict=True))
    assert after.oldest_version == 2


def test_masking_leaves_what_is_young_enough_as_it_is():
    group = drawn(0, [2], [3, 4])
    assert all(new is old for new, old in zip(masked(group, oldest=2).samples, group.samples, strict=True))


@given(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=5), min_size=1, max_size=3), st.integers(0, 6))
def test_no_action_left_is_older_and_none_that_is_younger_is_missing(versions, oldest):
    after = masked(drawn(0, *versions), oldest)
    assert actions(after) == sum(version >= oldest for each in versions for version in each)
    assert after.oldest_version == -1 or after.oldest_version >= oldest
