"""Statistics of a prompt's rewards over batches: by hand, bounded, and the same after a checkpoint."""

import json
from dataclasses import replace

import algo_examples
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.algos import TrackedRewards, ddpo
from penstock.algos.tracked_rewards import named, remembered, with_statistics
from penstock.loops.learn import Labeller

FEW = TrackedRewards(size=4, least=3)


def group(prompt, *rewards, ordinal=0):
    """One sample of two actions for each reward; None is one that failed."""
    made = algo_examples.group(*(algo_examples.sample([2, 3], reward) for reward in rewards), ordinal=ordinal)
    return replace(made, prompt=replace(made.prompt, text=prompt))


def labeller(**fields):
    return Labeller(ddpo(history=TrackedRewards(**fields)), None, None)


def advantages(units):
    return [[float(row.fields["advantage"][0]) for row in unit] for unit in units]


ROOT = np.sqrt(5)


@pytest.mark.parametrize(
    ("earlier", "batch", "least", "expected"),
    [
        # rewards 1 and 3 of a prompt that had 2 and 6: mean 3, deviation √(14 / 4)
        ([group("cat", 2.0, 6.0)], [group("cat", 1.0, 3.0)], 3, [[-2 / np.sqrt(3.5), 0.0]]),
        # rewards 0, 2 and 4, 6 of two prompts: mean 3, deviation √5
        ([], [group("cat", 0.0, 2.0), group("dog", 4.0, 6.0, ordinal=1)], 3, [[-3 / ROOT, -1 / ROOT], [1 / ROOT, 3 / ROOT]]),
        ([], [group("cat", 0.0), group("dog", 4.0, ordinal=1)], 2, [[-1.0], [1.0]]),
    ],
    ids=["by its prompts' earlier rewards too", "below the least count by the whole batch", "of one sample a prompt"],
)
def test_a_batch_is_measured_by_hand(earlier, batch, least, expected):
    one = labeller(size=4, least=least)
    if earlier:
        one.label(earlier)
    assert advantages(one.label(batch)) == [pytest.approx(part, abs=1e-5) for part in expected]


def test_a_sample_that_failed_is_in_no_statistic():
    assert remembered({}, [group("cat", 1.0, None, 3.0)], FEW) == {named(group("cat")): [1.0, 3.0]}


def test_a_prompt_is_its_text_and_not_its_place():
    found = remembered(remembered({}, [group("cat", 1.0)], FEW), [group("cat", 2.0, ordinal=7)], FEW)
    assert list(found.values()) == [[1.0, 2.0]]


@given(rewards=st.lists(st.lists(st.floats(-5, 5), min_size=1, max_size=6), min_size=1, max_size=8))
def test_no_more_than_the_newest_rewards_are_kept_in_their_order(rewards):
    history = {}
    for batch in rewards:
        history = remembered(history, [group("cat", *batch)], FEW)
    everything = [float(np.float32(reward)) for batch in rewards for reward in batch]
    assert list(history.values()) == [everything[-4:]]


def test_the_prompt_that_was_not_seen_for_longest_is_forgotten():
    kept, history = TrackedRewards(size=4, least=1, prompts=2), {}
    for prompt in ("cat", "dog", "cat", "cow"):
        history = remembered(history, [group(prompt, 1.0)], kept)
    assert list(history) == [named(group("cat")), named(group("cow"))]


def test_nothing_is_changed_in_place():
    history = {named(group("cat")): [1.0]}
    remembered(history, [group("cat", 2.0)], FEW)
    with_statistics([group("cat", 2.0)], history, FEW)
    assert history == {named(group("cat")): [1.0]}


def test_a_labeller_goes_on_from_its_checkpoint_as_if_nothing_had_been():
    batches = [[group("cat", 0.1 * n, 0.3), group("dog", 1.0 / (n + 1), n, ordinal=1)] for n in range(6)]
    whole, first, second = (labeller(size=8, least=3) for _ in range(3))
    wanted = [advantages(whole.label(batch)) for batch in batches]
    found = [advantages(first.label(batch)) for batch in batches[:3]]
    state = first.state()
    state.values = json.loads(json.dumps(state.values))
    second.load_state(state)
    assert found + [advantages(second.label(batch)) for batch in batches[3:]] == wanted
