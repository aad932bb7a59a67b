"""A process reward model as a reward: which token ends a step, and what is made of the steps."""

import asyncio
import math

import numpy as np
import pytest

from penstock.core.errors import RewardError
from penstock.core.types import Group, Prompt, PromptKey, Row, Sample, SampleKey
from penstock.rewards.model import WAYS, StepReward, steps_of, summary

PIECES = ["a", "bc", "\n", "\nd", "e\n", "  "]


def decode(tokens):
    return "".join(PIECES[token] for token in tokens)


@pytest.mark.parametrize(
    ("tokens", "steps"),
    [
        ([0, 1, 2, 0], [("abc", 1), ("a", 3)]),
        ([0, 1, 2, 0, 2], [("abc", 1), ("a", 3)]),  # the last step is closed
        ([0, 3, 4], [("a", 0), ("de", 2)]),  # a token that ends one step and begins the next
        ([0, 2, 2, 5, 2, 1], [("a", 0), ("bc", 5)]),  # blank lines are no steps
        ([2], []),
        ([], []),
    ],
)
def test_a_step_ends_with_the_token_that_completes_its_text(tokens, steps):
    assert steps_of(tokens, decode, "\n") == steps


def test_a_separator_may_be_longer_than_a_character():
    assert steps_of([0, 2, 2, 1], decode, "\n\n") == [("a", 0), ("bc", 3)]


@pytest.mark.parametrize(
    ("use", "value"),
    [("steps", [None, 0.5, None, 0.8]), ("minimum", 0.5), ("product", 0.4), ("last", 0.8), ("mean", 0.65)],
)
def test_what_is_made_of_the_steps_by_hand(use, value):
    assert summary([0.5, 0.8], [1, 3], 4, use) == (value if use == "steps" else pytest.approx(value))


def test_two_steps_that_end_in_one_token_add_up():
    assert summary([0.5, 0.8], [1, 1], 2, "steps") == [None, 1.3]


@pytest.mark.parametrize("use", sorted(set(WAYS) - {"steps"}))
def test_an_answer_without_a_step_is_worth_nothing(use):
    assert summary([], [], 3, use) == 0.0


class Judge:
    """Gives the first step of a row the score ln 3, the next ones 0."""

    def score(self, units, needs):
        rows = [row for unit in units for row in unit]
        scores = [np.array([math.log(3), 0.0, 0.0][: int(row.action_T.sum())]) for row in rows]
        return {"step": scores}


def row_with(separator):
    def row(sample, prompt, steps):
        tokens_T = np.arange(len(steps) + 1, dtype=np.int32)
        return Row({"tokens_T": tokens_T}, tokens_T > 0)

    return row


def group(*answers):
    key = PromptKey("test", 0, 0)
    samples = []
    for place, answer in enumerate(answers):
        tokens_T = np.array([0, *answer], np.int32)
        action_T = np.arange(len(tokens_T)) > 0
        logp_T, version_T = np.zeros(len(tokens_T), np.float32), np.zeros(len(tokens_T), np.int32)
        samples.append(Sample(SampleKey(key, place), {"tokens_T": tokens_T}, action_T, logp_T, version_T, "stop"))
    return Group(Prompt(key, "a"), tuple(samples))


def ask(*answers, **options):
    reward = StepReward(Judge(), "judge", decode, row_with)
    try:
        return asyncio.run(reward(group(*answers), {}, **options))
    finally:
        reward.close()


def test_each_sample_gets_the_probabilities_of_its_own_steps():
    assert ask([0, 2, 1], [1], [2]) == [[0.75, None, 0.5], [0.75], [None]]
    assert ask([0, 2, 1], [1], [2], use="minimum") == pytest.approx([0.5, 0.75, 0.0])


def test_an_unknown_way_is_refused():
    with pytest.raises(RewardError, match="unknown; use steps, minimum"):
        ask([0], use="median")
