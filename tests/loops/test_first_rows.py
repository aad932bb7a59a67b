"""What is said of a stage's first samples."""

import numpy as np
import pytest

from penstock.core.types import Group, Prompt, PromptKey, Sample, SampleKey
from penstock.loops.learn import Step
from penstock.loops.look import Seen
from penstock.observe.first_rows import remarks_on_behaviour, remarks_on_samples
from penstock.observe.rules import thresholds

KEY = PromptKey("rows", 0, 0)


def sample(number, finish="stop", reward=0.0, error=None):
    acted = np.array([False, True, True])
    logp_T, version_T = np.array([0.0, -1.0, -2.0], np.float32), np.array([-1, 0, 0], np.int32)
    columns = {"tokens_T": np.arange(3, dtype=np.int32)}
    return Sample(SampleKey(KEY, number), columns, acted, logp_T, version_T, finish, error=error).scored(reward)


def step(*samples, gap=0.0):
    group = Group(Prompt(KEY, "a"), samples)
    seen = tuple(Seen(group, one, one.logp_T[one.action_T] + np.float32(gap)) for one in samples)
    return Step(0, 1, {}, (group,), seen=seen)


BEHAVIOUR = {
    "well": (step(sample(0, reward=1.0), sample(1)), []),
    "never ends": (step(sample(0, "length"), sample(1, "length", 1.0)), ["no sample ended by itself"]),
    "all alike": (step(sample(0, "length", 1.0), sample(1, "stop", 1.0)), ["every sample was rewarded 1"]),
    "both": (step(sample(0, "length"), sample(1, "length")), ["no sample ended", "every sample was rewarded 0"]),
    "failed": (step(sample(0, error="reward failed"), sample(1, error="reward failed")), []),
    "of data": (Step(0, 1, {}), []),
}
SAMPLES = {
    "well": (step(sample(0), sample(1), gap=0.0005), []),
    "apart": (step(sample(0), sample(1), gap=0.5), ["learner and generator are 0.5 nats apart on a token and 0.5 in the mean"]),
    "failed": (step(sample(0, error="no licence"), sample(1)), ["1 of 2 samples failed: no licence"]),
}


def begins(said, expected):
    return len(said) == len(expected) and all(line.startswith(begin) for line, begin in zip(said, expected, strict=True))


@pytest.mark.parametrize(("found", "expected"), BEHAVIOUR.values(), ids=BEHAVIOUR)
def test_behaviour_that_cannot_be_learned_from_is_named(found, expected):
    assert begins(list(remarks_on_behaviour(found)), expected)


@pytest.mark.parametrize(("found", "expected"), SAMPLES.values(), ids=SAMPLES)
def test_failures_and_a_gap_between_learner_and_generator_are_named(found, expected):
    assert begins(list(remarks_on_samples(found)), expected)


@pytest.mark.parametrize(("dtype", "gap", "told"), [("float32", 0.02, 1), ("bfloat16", 0.02, 0), ("bfloat16", 0.2, 1)])
def test_what_rounding_explains_is_no_gap(dtype: str, gap: float, told: int) -> None:
    assert len(list(remarks_on_samples(step(sample(0), sample(1), gap=gap), thresholds(dtype, 2)))) == told


def test_one_token_that_is_far_off_is_told_though_the_mean_is_small() -> None:
    seen = [one.logp_A for one in step(*(sample(0) for _ in range(400)), gap=0.0).seen]
    seen[7][0] += 0.02
    group = Group(Prompt(KEY, "a"), ())
    far = Step(0, 1, {}, (), seen=tuple(Seen(group, sample(0), logp_A) for logp_A in seen))
    assert len(list(remarks_on_samples(far))) == 1
