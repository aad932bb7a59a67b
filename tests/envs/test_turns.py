"""Environments of several turns: a function answers, ends the episode, or fails its own sample under its own name."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from penstock.core.errors import EnvError
from penstock.core.types import PromptKey, Sample, SampleKey
from penstock.envs.turns import Dialogue, Turns

PROMPT = np.array([5, 6], np.int32)


@pytest.fixture(scope="module")
def executor():
    with ThreadPoolExecutor(4) as threads:
        yield threads


def encode(text):
    return [ord(letter) for letter in text]


def sample(text="written"):
    key = SampleKey(PromptKey("test", 0, 0), 0)
    return Sample(key, {"tokens_T": PROMPT}, np.ones(2, bool), np.zeros(2, np.float32), np.zeros(2, np.int32), "stop", text)


def episode(function, executor, turns=8, deadline=5.0, columns=None):
    return Turns(PROMPT, Dialogue("tool", function, encode, executor, turns, deadline), columns)


def played(env, count):
    """What an environment says to so many turns."""

    async def play():
        env.reset()
        return [await env.step(sample()) for _ in range(count)]

    return [None if said is None else said.tolist() for said in asyncio.run(play())]


def test_an_episode_begins_with_the_prompt(executor):
    assert episode(lambda *_: None, executor).reset().tolist() == [5, 6]


def test_what_the_function_says_is_appended_as_tokens(executor):
    assert played(episode(lambda sample, columns, turn: f"{sample.text[0]}{turn}", executor), 2) == [encode("w0"), encode("w1")]


def test_none_ends_the_episode(executor):
    assert played(episode(lambda *_: None, executor), 1) == [None]


def test_an_asynchronous_function_is_awaited(executor):
    async def answer(sample, columns, turn):
        await asyncio.sleep(0)
        return columns["word"]

    assert played(episode(answer, executor, columns={"word": "yes"}), 1) == [encode("yes")]


def test_the_policy_has_so_many_turns_and_the_function_is_not_asked_after_the_last(executor):
    asked = []

    def answer(sample, columns, turn):
        asked.append(turn)
        return "on"

    assert played(episode(answer, executor, turns=3), 3)[-1] is None
    assert asked == [0, 1]


def test_a_function_cannot_change_what_other_samples_see(executor):
    columns = {"word": "yes"}

    def answer(sample, columns, turn):
        columns["word"] = "no"

    played(episode(answer, executor, columns=columns), 1)
    assert columns == {"word": "yes"}


async def forever(sample, columns, turn):
    await asyncio.Event().wait()


def slow(sample, columns, turn):
    time.sleep(0.5)


def broken(sample, columns, turn):
    raise ValueError("no such page")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (forever, r'environment "tool" took longer than 0.05 s in turn 1: raise environment.deadline'),
        (slow, r"took longer than 0.05 s in turn 1"),
        (broken, r'environment "tool" raised ValueError in turn 1: no such page'),
        (lambda *_: 3, r"gave int in turn 1: return text, or None to end the episode"),
        (lambda *_: "", r"said nothing in turn 1: return None"),
    ],
)
def test_a_failure_names_the_environment_the_turn_and_the_fix(executor, function, message):
    with pytest.raises(EnvError, match=message):
        played(episode(function, executor, deadline=0.05), 1)


def test_an_episode_is_single_use(executor):
    env = episode(lambda *_: None, executor)
    env.reset()
    with pytest.raises(EnvError, match="single-use"):
        env.reset()
