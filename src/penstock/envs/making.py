"""From specs to episodes: what a stage's rollout makes one of for every sample."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from penstock.core.errors import ModelError, SpecError
from penstock.core.types import IntArray, Prompt
from penstock.data.resolve import is_reference, resolve
from penstock.data.texts import prompt_tokens
from penstock.envs.env import ENVIRONMENTS, LIBRARIES, Env, TextFunction
from penstock.envs.episode import Conversation, Episode, MakeEnv, Play
from penstock.envs.spec import EnvironmentSpec
from penstock.sandbox.threads import Threads

EPISODES, STUCK = 256, 1024
"""Threads in which plain functions of environments may work at a time (asynchronous ones need none), and how many more may be
stuck in calls that passed their deadline before the run stops."""
KNOWN = 1024
"""Prompts whose tokens are remembered for their other samples."""


def env_class(spec: EnvironmentSpec, base: Path | None) -> MakeEnv:
    """Makes environments of a prompt's columns. Raises SpecError where the function is not there, or its options do not fit."""
    package, _, named = spec.function.partition(":")
    options = {"name": named, **spec.options} if package in LIBRARIES else spec.options
    found: Any = LIBRARIES.get(package) or ENVIRONMENTS.get(spec.function, spec.function)
    if isinstance(found, str):
        if not is_reference(found):
            known = ", ".join((*ENVIRONMENTS, *(f"{package}:NAME" for package in LIBRARIES)))
            raise SpecError(f'environment "{spec.function}" is unknown; known are: {known}; or write FILE.py:NAME')
        found = resolve(found, base)
    whole = isinstance(found, type) and issubclass(found, Env)
    if whole and found.step is Env.step:
        raise SpecError(f'environment "{spec.function}" has no step; write: async def step(self, said)')
    takes = "(columns, **options)" if whole else "(sample, columns, turn, **options)"
    try:
        inspect.signature(found).bind(*([{}] if whole else [None, {}, 0]), **options)
    except TypeError as error:
        raise SpecError(
            f'environment "{spec.function}" cannot be called as {takes} with options {dict(spec.options)}: {error}'
        ) from error
    options = found.prepared(options, base) if whole else options
    called = partial(found, **options) if options else found
    return called if whole else partial(TextFunction, called)


def environments(text: Any, spec: EnvironmentSpec | None = None, base: Path | None = None) -> Callable[[Prompt], Episode]:
    """Makes episodes, of one turn unless a spec says more; a prompt is tokenized once for all its samples.

    Raises:
        SpecError: the function of the spec is not there, or cannot be called as an environment.
    """
    return single_turns(text) if spec is None else spec.build(text, base)


def single_turns(text: Any) -> Callable[[Prompt], Episode]:
    """Makes episodes that are a prompt and an answer."""
    tokens_of = _remembered(text)
    return lambda prompt: Episode(tokens_of(prompt))


def conversations(spec: EnvironmentSpec, text: Any, base: Path | None) -> Callable[[Prompt], Episode]:
    """Makes the episodes of an environment. Raises SpecError: see :func:`env_class`."""
    make_env, tokens_of = env_class(spec, base), _remembered(text)
    play = Play(spec, text, Threads("environment", EPISODES, STUCK))
    return lambda prompt: Conversation(make_env, prompt, tokens_of(prompt), play)


def _remembered(text: Any) -> Callable[[Prompt], IntArray]:
    known: dict[tuple[Any, ...], IntArray] = {}

    def tokens_of(prompt: Prompt) -> IntArray:
        name = prompt.key, prompt.text, prompt.blobs  # two data sets may share a name, and so keys
        if name not in known:
            if len(known) >= KNOWN:
                known.pop(next(iter(known)))
            try:
                known[name] = prompt_tokens(prompt, text)
            except ModelError as error:
                raise ModelError(f"prompt {prompt.key}: {error}") from error
        return known[name]

    return tokens_of
