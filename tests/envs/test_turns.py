"""Environments of several turns: a function answers, ends the episode, or fails its own sample under its own name."""

import asyncio
import sys
import threading
import time

import numpy as np
import pytest

from penstock.core.errors import EnvError
from penstock.core.types import PromptKey, Sample, SampleKey
from penstock.envs.turns import Dialogue, Turns
from penstock.sandbox.threads import StuckError, Threads

PROMPT = np.array([5, 6], np.int32)


@pytest.fixture
def threads():
    made = Threads("environment", 4)
    yield made
    made.close()


def encode(text):
    return [ord(letter) for letter in text]


def sample(text="written"):
    key = SampleKey(PromptKey("test", 0, 0), 0)
    return Sample(key, {"tokens_T": PROMPT}, np.ones(2, bool), np.zeros(2, np.float32), np.zeros(2, np.int32), "stop", text)


def episode(function, threads, turns=8, deadline=5.0, columns=None):
    return Turns(PROMPT, Dialogue("tool", function, encode, threads, turns, deadline), columns)


def played(env, count):
    """What an environment says to so many turns."""

    async def play():
        env.reset()
        return [await env.step(sample()) for _ in range(count)]

    return [None if said is None else said.tolist() for said in asyncio.run(play())]


def test_an_episode_begins_with_the_prompt(threads):
    assert episode(lambda *_: None, threads).reset().tolist() == [5, 6]


def test_what_the_function_says_is_appended_as_tokens(threads):
    assert played(episode(lambda sample, columns, turn: f"{sample.text[0]}{turn}", threads), 2) == [encode("w0"), encode("w1")]


def test_none_ends_the_episode(threads):
    assert played(episode(lambda *_: None, threads), 1) == [None]


def test_an_asynchronous_function_is_awaited(threads):
    async def answer(sample, columns, turn):
        await asyncio.sleep(0)
        return columns["word"]

    assert played(episode(answer, threads, columns={"word": "yes"}), 1) == [encode("yes")]


def test_the_policy_has_so_many_turns_and_the_function_is_not_asked_after_the_last(threads):
    asked = []

    def answer(sample, columns, turn):
        asked.append(turn)
        return "on"

    assert played(episode(answer, threads, turns=3), 3)[-1] is None
    assert asked == [0, 1]


def test_a_function_cannot_change_what_other_samples_see(threads):
    columns = {"word": "yes"}

    def answer(sample, columns, turn):
        columns["word"] = "no"

    played(episode(answer, threads, columns=columns), 1)
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
def test_a_failure_names_the_environment_the_turn_and_the_fix(threads, function, message):
    with pytest.raises(EnvError, match=message):
        played(episode(function, threads, deadline=0.05), 1)


def test_an_episode_is_single_use(threads):
    env = episode(lambda *_: None, threads)
    env.reset()
    with pytest.raises(EnvError, match="single-use"):
        env.reset()


def test_the_deadline_counts_from_when_a_thread_begins(threads):
    """12 episodes of a 0.1 s tool on 4 threads: the last waits 0.2 s, longer than its deadline."""
    envs = [episode(lambda *_: time.sleep(0.1) or "done", threads, deadline=0.19) for _ in range(12)]

    async def play():
        for env in envs:
            env.reset()
        return await asyncio.gather(*(env.step(sample()) for env in envs))

    assert all(said.tolist() == encode("done") for said in asyncio.run(play()))


def test_a_hung_function_holds_no_thread():
    threads, release = Threads("environment", 1, most_abandoned=2), threading.Event()
    try:
        with pytest.raises(EnvError, match="took longer"):
            played(episode(lambda *_: release.wait(5) and None, threads, deadline=0.05), 1)
        assert played(episode(lambda *_: "free", threads), 1) == [encode("free")]
    finally:
        release.set()


def test_with_too_many_hung_calls_the_run_stops():
    threads, release = Threads("environment", 4, most_abandoned=1), threading.Event()
    try:
        with pytest.raises(EnvError, match="took longer"):
            played(episode(lambda *_: release.wait(5) and None, threads, deadline=0.05), 1)
        with pytest.raises(StuckError, match=r'environment "tool": 1 threads of environment are stuck'):
            played(episode(lambda *_: "free", threads), 1)
    finally:
        release.set()


class Tool:
    async def __call__(self, sample, columns, turn):
        return "called"


def test_an_object_that_is_called_asynchronously_is_awaited(threads):
    assert played(episode(Tool(), threads), 1) == [encode("called")]


def test_sys_exit_in_a_function_fails_its_sample(threads):
    with pytest.raises(EnvError, match="failed in turn 1: raised SystemExit"):
        played(episode(lambda *_: sys.exit(), threads), 1)
