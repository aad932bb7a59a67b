"""The one-prompt environment."""

import asyncio

import numpy as np
import pytest

from penstock.core.errors import EnvError
from penstock.core.types import PromptKey, Sample, SampleKey
from penstock.envs.turns import Turns

SAMPLE = Sample(
    key=SampleKey(PromptKey("s", 0, 0), 0),
    columns={"tokens_T": np.array([1, 2], np.int32)},
    action_T=np.array([False, True]),
    logp_T=np.zeros(2, np.float32),
    version_T=np.array([-1, 0], np.int32),
    finish="stop",
)


def test_it_gives_the_prompt_and_is_done_after_one_action():
    env = Turns(np.array([5, 6]))
    assert env.reset().tolist() == [5, 6]
    assert asyncio.run(env.step(SAMPLE)) is None


def test_it_is_single_use():
    env = Turns(np.array([5]))
    env.reset()
    with pytest.raises(EnvError, match="single-use"):
        env.reset()
    asyncio.run(env.step(SAMPLE))
    with pytest.raises(EnvError, match="finished"):
        asyncio.run(env.step(SAMPLE))


def test_it_must_be_asked_before_it_is_answered():
    with pytest.raises(EnvError, match="call reset first"):
        asyncio.run(Turns(np.array([5])).step(SAMPLE))


def test_an_empty_prompt_is_refused():
    with pytest.raises(EnvError, match="at least one token"):
        Turns(np.array([], np.int32))
