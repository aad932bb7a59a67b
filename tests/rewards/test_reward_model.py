"""A frozen model as a reward."""

import asyncio
import threading

import numpy as np
import pytest
from reward_examples import make_group, score

from penstock.config.run import RewardSpec
from penstock.rewards.model import ModelReward
from penstock.rewards.runner import Mixture


class Summing:
    """Scores a row with the sum of its tokens."""

    def __init__(self, drop=0):
        self.calls = []
        self.drop = drop

    def score(self, units, needs):
        self.calls.append(units)
        assert needs == {"score"}
        assert not any(row.action_T.any() for unit in units for row in unit)
        scores = [float(row.tokens_T.sum()) for unit in units for row in unit]
        return {"score": scores[: len(scores) - self.drop]}


class Held(Summing):
    """Scores nothing until it is released."""

    def __init__(self):
        super().__init__()
        self.release = threading.Event()

    def score(self, units, needs):
        assert self.release.wait(5)
        return super().score(units, needs)


def mixture(model):
    return Mixture((RewardSpec(function="model:@judge", deadline=2),), {"model:@judge": model})


def test_each_sample_gets_its_own_score():
    scorer = Summing()
    model = ModelReward(scorer, "judge", lambda sample, prompt: np.full(len(sample.text), 2))
    group = score(mixture(model), make_group("a", "bbb", "cc"))
    assert [sample.reward for sample in group.samples] == [2.0, 6.0, 4.0]
    assert [len(unit) for unit in scorer.calls[0]] == [3]


def test_the_samples_own_tokens_are_read_unless_told_otherwise():
    (sample,) = score(mixture(ModelReward(Summing(), "judge")), make_group("a")).samples
    assert sample.reward == float(sample.tokens_T.sum())


def test_another_vocabulary_reads_prompt_and_text_anew():
    model = ModelReward(Summing(), "judge", lambda sample, prompt: np.array([len(prompt.text), len(sample.text)]))
    assert score(mixture(model), make_group("abc")).samples[0].reward == len("question") + 3


async def test_groups_that_wait_together_are_scored_in_one_call():
    scorer = Summing()
    made = mixture(ModelReward(scorer, "judge", lambda sample, prompt: np.full(len(sample.text), 1)))
    groups = await asyncio.gather(*(made(make_group("a" * (n + 1), "b")) for n in range(5)))
    assert [[sample.reward for sample in group.samples] for group in groups] == [[n + 1.0, 1.0] for n in range(5)]
    assert [len(units) for units in scorer.calls] == [5]


async def test_who_is_scored_together_does_not_depend_on_how_long_scoring_takes():
    """Groups that come one by one while the thread is busy must not be gathered into one call: last bits would change."""
    scorer = Held()
    model = ModelReward(scorer, "judge")
    asked = []
    for text in "abc":
        asked.append(asyncio.create_task(model(make_group(text), {})))
        await asyncio.sleep(0.01)
    scorer.release.set()
    await asyncio.gather(*asked)
    assert [len(units) for units in scorer.calls] == [1, 1, 1]


async def test_scoring_leaves_the_loop_free():
    scorer = Held()
    task = asyncio.create_task(mixture(ModelReward(scorer, "judge"))(make_group("a")))
    await asyncio.sleep(0.05)
    scorer.release.set()
    assert (await task).samples[0].valid


async def test_a_group_that_gave_up_does_not_disturb_those_that_wait():
    scorer = Summing()
    model = ModelReward(scorer, "judge")
    impatient = asyncio.create_task(model(make_group("a"), {}))
    patient = asyncio.create_task(model(make_group("b"), {}))
    await asyncio.sleep(0)
    impatient.cancel()
    assert await patient == [float(make_group("b").samples[0].tokens_T.sum())]
    assert [len(units) for units in scorer.calls] == [1]


async def test_a_failing_model_fails_the_groups_that_asked_and_recovers():
    class Once(Summing):
        def score(self, units, needs):
            if not self.calls:
                self.calls.append(units)
                raise RuntimeError("out of memory")
            return super().score(units, needs)

    made = mixture(ModelReward(Once(), "judge"))
    first, second = [await made(make_group(text)) for text in "ab"]
    assert first.samples[0].error == 'RewardError: reward "judge" failed on prompt gsm8k/0/17: RuntimeError: out of memory'
    assert second.samples[0].valid


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (ModelReward(Summing(drop=1), "judge"), "gave 1 scores for 2 samples"),
        (ModelReward(Summing(), "judge", lambda sample, prompt: np.array([])), "has no tokens to read"),
    ],
)
def test_a_model_that_cannot_be_asked_fails_the_group(model, says):
    group = score(mixture(model), make_group("a", "b"))
    assert all(says in sample.error for sample in group.samples)
