"""What enrichment steps write on the samples of a group."""

from dataclasses import replace

import pytest
from stream_examples import generated, scored

from penstock.core.errors import StreamError
from penstock.core.types import Group
from penstock.stream.enrichment import changes, merged


def with_extras(group, **extras):
    return Group(group.prompt, tuple(replace(one, extras={**one.extras, **extras}) for one in group.samples))


def test_a_reward_is_merged_into_every_sample():
    plain = generated(0, [0, 0], [0])
    found = changes(plain, scored(plain, 2.0, 3.0))
    assert [one.reward for one in merged(plain, found).samples] == [2.0, 3.0]
    assert [one.reward_T.tolist() for one in merged(plain, found).samples] == [[0, 0, 2.0], [0, 3.0]]


def test_a_change_holds_only_the_extras_that_are_new():
    plain = with_extras(generated(0, [0]), prompt="long", shared="old")
    (change,) = changes(plain, with_extras(plain, shared="new", reference=1.5))
    assert change["extras"] == {"shared": "new", "reference": 1.5}


def test_a_change_does_not_hold_the_tokens():
    plain = generated(0, [0])
    (change,) = changes(plain, scored(plain, 1.0))
    assert set(change) == {"reward_T", "error", "extras"}


def test_two_stages_that_begin_at_the_same_group_do_not_undo_each_other():
    plain = generated(0, [0])
    reward, reference = changes(plain, scored(plain, 1.0)), changes(plain, with_extras(plain, reference_logp=0.5))
    for order in ((reward, reference), (reference, reward)):
        group = plain
        for found in order:
            group = merged(group, found)
        assert group.samples[0].reward == 1.0
        assert group.samples[0].extras == {"reference_logp": 0.5}


def test_an_error_that_is_there_stays():
    plain = generated(0, [0])
    failed = Group(plain.prompt, (plain.samples[0].failed("the tool broke"),))
    (one,) = merged(failed, [{"error": "the reward broke"}]).samples
    assert one.error == "the tool broke"


def test_a_later_error_marks_its_sample_only():
    first, second = merged(generated(0, [0], [0]), [{}, {"error": "the reward broke"}]).samples
    assert (first.error, second.error) == (None, "the reward broke")


def test_one_finding_too_few_is_refused():
    with pytest.raises(StreamError, match="test/0/7 has 2 samples, but a step wrote about 1"):
        merged(generated(7, [0], [0]), [{}])
