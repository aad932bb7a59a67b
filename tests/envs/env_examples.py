"""Environments of a few lines, and samples as a generator would give them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from penstock.core.types import IntArray, Prompt, PromptKey, Sample, SampleKey
from penstock.data.resolve import register
from penstock.envs.episode import Conversation, Play
from penstock.envs.making import env_class
from penstock.envs.spec import EnvironmentSpec
from penstock.sandbox.threads import Threads

KEY = SampleKey(PromptKey("test", 0, 0), 0)
PROMPT = Prompt(KEY.prompt, "begin", columns={"word": "yes"})
END = 0


def seeded(seed: int = 3) -> Prompt:
    """A prompt whose row has a seed."""
    return Prompt(KEY.prompt, "begin", columns={"seed": seed})


class Letters:
    """A tokenizer of which each letter is a token; 0 ends a turn."""

    ends = frozenset({END})
    store = None

    def __init__(self) -> None:
        self.tokenizer = self

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    following = prompt = encode

    def showing(self, blobs: Any) -> Any:
        return self

    def decode(self, tokens: Sequence[int], **given: Any) -> str:
        return "".join(chr(token) for token in tokens)


def after(context_T: IntArray, said: str, *, ended: bool = True) -> Sample:
    """The sample of a turn that follows a context."""
    tokens_T = np.array([*context_T, *map(ord, said), *([END] if ended else [])], np.int32)
    action_T = np.arange(len(tokens_T)) >= len(context_T)
    logp_T, version_T = np.zeros(len(tokens_T), np.float32), np.where(action_T, 0, -1).astype(np.int32)
    return Sample(KEY, {"tokens_T": tokens_T}, action_T, logp_T, version_T, "stop" if ended else "length", said)


def conversation(
    env: Callable[..., Any], threads: Threads, prompt: Prompt = PROMPT, text: Any = None, **fields: Any
) -> Conversation:
    """An episode of an environment, or of a function of a turn."""
    return named(register(env), threads, prompt, text, **fields)


def named(function: str, threads: Threads, prompt: Prompt = PROMPT, text: Any = None, **fields: Any) -> Conversation:
    """An episode of an environment that a spec names."""
    text = text or Letters()
    spec = EnvironmentSpec(function=function, **{"deadline": 5.0, **fields})
    tokens_T = np.array([ord(letter) for letter in prompt.text], np.int32)
    return Conversation(env_class(spec, None), prompt, tokens_T, Play(spec, text, threads))


def call(name: str, **arguments: Any) -> str:
    """A tool call as Hermes writes it."""
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


async def playing(episode: Conversation, said: Sequence[str]) -> tuple[Any, list[str | None]]:
    """The finished sample; how the episode began, and what each answer added to the conversation (None: it was over)."""
    heard: list[str | None] = []
    sample = None
    try:
        context_T: IntArray | None = await episode.reset()
        assert context_T is not None
        heard.append(Letters().decode(context_T.tolist()))
        for turn in said:
            assert context_T is not None
            sample = after(context_T, turn)
            context_T = await episode.step(sample)
            heard.append(None if context_T is None else Letters().decode(context_T[len(sample.tokens_T) :].tolist()))
    finally:
        await episode.close()
    return sample and episode.annotated(sample), heard


def played(episode: Conversation, said: Sequence[str]) -> tuple[Any, list[str | None]]:
    """The finished sample, and what each answer added to the conversation (None: it was over)."""
    sample, (_, *heard) = asyncio.run(playing(episode, said))
    return sample, heard


def played_without_end(episode: Conversation, said: str) -> Any:
    """The finished sample of an episode whose only turn was cut."""

    async def play() -> Any:
        sample = after(await episode.reset(), said, ended=False)
        assert await episode.step(sample) is None
        return episode.annotated(sample)

    return asyncio.run(play())


def heard_by_tokenizer(episode: Conversation, text: Any, said: str) -> str:
    """What is added to a conversation over a real tokenizer by a turn."""

    async def play() -> str:
        letters = "".join(map(chr, [*text.encode(said), text.end]))
        sample = replace(after(await episode.reset(), letters, ended=False), finish="stop")
        return text.tokenizer.decode((await episode.step(sample))[len(sample.tokens_T) :])

    return asyncio.run(play())


def rewards_of_turns(sample: Any) -> list[float | None]:
    return [turn[2] for turn in sample.extras["turns"]]


def begun(episode: Conversation) -> str:
    """What an episode begins with."""
    return Letters().decode(asyncio.run(episode.reset()).tolist())
