"""What a rollout asks of an environment, in tokens; and a conversation, which drives an :class:`~penstock.envs.env.Env`."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from penstock.core.blobs import Blob
from penstock.core.errors import EnvError, ModelError, PenstockError, SpecError
from penstock.core.types import LARGEST_REWARD, LEFT_OUT, PART, IntArray, Prompt, Sample, Sampling
from penstock.envs.env import Context, Env, Said, Turn
from penstock.envs.rendering import UNLISTED, Rendering, require_kept
from penstock.envs.shown import has_parts, taken
from penstock.envs.spec import EnvironmentSpec
from penstock.models.media import MEDIA
from penstock.sandbox.threads import DeadlineError, StuckError, Threads, bounded, is_asynchronous

MakeEnv = Callable[[Mapping[str, Any]], Env]

CLOSING = 10.0
"""Seconds that ``close`` may take."""
OPENING, THINKING = 8, ("<think>", "[THINK]")
"""Tokens before a turn, and the marks at their end that begin a thought."""


class Episode:
    """A prompt that is answered once, and the base of what goes on. Single-use."""

    more = False
    """Whether another request may follow the next one, so that its cache is worth keeping."""
    own_prompts = False
    """Whether the first request is no prompt of the data: one that does not fit fails its sample, and not the run."""
    blobs: tuple[Blob, ...] = ()
    """What observations have shown so far, in order; the next request shows it besides the prompt's."""

    def __init__(self, tokens_T: IntArray) -> None:
        if len(tokens_T) == 0:
            raise EnvError("a prompt needs at least one token; check the prompt template")
        self.tokens_T = np.asarray(tokens_T, np.int32)
        self._begun = False

    async def reset(self) -> IntArray:
        """Tokens of the first request. Raises EnvError where the environment fails."""
        if self._begun:
            raise EnvError("an episode is single-use; make a new one for every sample")
        self._begun = True
        return self.tokens_T

    async def step(self, sample: Sample) -> IntArray | None:
        """Tokens of the next request: those of ``sample`` and an observation, or the conversation anew; None where the episode
        is over. Raises EnvError where the environment fails."""
        return None

    def sampling(self, given: Sampling) -> Sampling:
        """How the next answer is generated."""
        return given

    async def cut(self) -> None:
        """A limit, such as the context, ends the episode, which would have gone on. Raises EnvError as :meth:`step` does."""

    async def close(self) -> None:
        """Always called, once, whatever became of the episode."""

    def again(self) -> Episode | None:
        """A second try of the same prompt, where the environment of this one, which is closed, was lost."""
        return None

    def annotated(self, sample: Sample) -> Sample:
        """The finished or failed sample with what the environment knows of it."""
        return sample


@dataclass(frozen=True)
class Play:
    """What all conversations of a stage have in common. Plain functions run in ``threads``; the deadline of a call counts from
    when one begins to work on it."""

    spec: EnvironmentSpec
    text: Any
    threads: Threads
    clock: Callable[[], float] = time.monotonic
    roles: set[str] = field(default_factory=set)

    def look(self, prompt: Prompt, env: Env, arguments: Mapping[str, Any]) -> None:
        """Once for each role: whether the template shows tools as the policy is to call them, and, where ``history="refuse"``,
        whether it keeps earlier turns. Raises SpecError where it does not."""
        if env.role in self.roles:
            return
        self.roles.add(env.role)
        tools = arguments.get("tools", ())
        if tools and env.calls != "hermes" and not self.text.template(arguments).schemas():
            raise SpecError(UNLISTED.format(env.calls))
        if self.spec.history == "refuse":
            require_kept(self.text, prompt, env.role, tools)


class Conversation(Episode):
    """One episode of an environment: limits, deadlines, rewards by turn, and an end that is looked after.

    ``annotated`` adds to a sample's extras: ``turns``, for each ``[begin, end, reward or None, finish]`` with positions in the
    sample; ``episode``, its facts by name; ``truncated``, whether it would have gone on.

    Raises:
        EnvError: the environment raised, took longer than its deadline, or answered what is no turn; names it and the turn.
        StuckError: so many calls never came back that the run has to stop.
    """

    def __init__(self, make_env: MakeEnv, prompt: Prompt, tokens_T: IntArray, play: Play) -> None:
        super().__init__(tokens_T)
        self.make_env, self.prompt, self.play = make_env, prompt, play
        self.env = Env({})
        self.more = play.spec.turns > 1
        self.turns: list[list[Any]] = []
        self.facts: Counter[str] = Counter()
        self.truncated = False
        self._over = self._lost = self.own_prompts = False
        """Whether it has ended; whether its environment raised; whether it began with an observation."""
        self._offset = self._known = self._first = 0
        """Tokens of earlier renderings; tokens of this one that were read before the turn; those of the first request."""
        self._closing: asyncio.Task[None] | None = None

    async def reset(self) -> IntArray:
        await super().reset()
        self._began = self.play.clock()
        try:
            self.env = self.make_env(dict(self.prompt.columns))
        except Exception as error:
            self._lost = True
            raise self._failure("crashed", f"raised {type(error).__name__}", str(error)) from error
        env, self.env.threads, self.env.chat = self.env, self.play.threads, bool(self.prompt.messages)
        env.text, env.prompt, env.history = self.play.text, self.prompt, self.play.spec.history
        env.show_tools = self.play.spec.show_tools
        first = None if type(env).reset is Env.reset else await self._ask(env.reset)
        first = await self._seen(first.observation if isinstance(first, Turn) else first)
        self.own_prompts = first is not None
        self.rendering = Rendering(self.play.text, self.prompt, self.play.spec.history, env.tools if env.show_tools else ())
        if env.chat:
            self.play.look(self.prompt, env, self.rendering.arguments)
        if first is None and not self.rendering.chat:
            first = self.tokens_T
        try:
            first = first.tokens_T if isinstance(first, Context) else first
            context_T = (
                first if isinstance(first, np.ndarray) else self.rendering.open(() if first is None else first, self.blobs)
            )
        except (EnvError, ModelError) as error:
            raise self._failure("crashed", "cannot begin", str(error)) from error
        if len(context_T) == 0:
            raise self._failure("crashed", "said nothing", "give a first observation, or None for the data's prompt")
        self._known = self._first = len(context_T)
        return np.asarray(context_T, np.int32)

    async def step(self, sample: Sample) -> IntArray | None:
        if not self._begun or self._over:
            raise EnvError(f"step was called on {'a finished' if self._begun else 'an unbegun'} episode; call reset first")
        spec, number, begin = self.play.spec, len(self.turns), self._offset + self._known
        said_T = sample.tokens_T[self._known :]
        self.turns.append([begin, begin + len(said_T), None, sample.finish])
        last, self.more = number + 1 >= spec.turns, number + 2 < spec.turns
        if last and not self.env.judges_last:
            return self._end(truncated=True)
        ends = len(said_T) > 0 and int(said_T[-1]) in self.play.text.ends
        raw = self.play.text.tokenizer.decode(said_T[: len(said_T) - ends].tolist(), skip_special_tokens=False)
        read = self.play.text.tokenizer.decode(sample.tokens_T[: self._known][-OPENING:].tolist(), skip_special_tokens=False)
        thinking = str(read).rstrip().endswith(THINKING)
        said = Said(sample.text, str(raw), said_T, sample.finish, number, sample, last, thinking)
        turn = self._earned(await self._ask(self.env.step, said))
        if turn.terminated or turn.truncated:
            return self._end(turn.truncated)
        late = 0 < spec.seconds <= self.play.clock() - self._began
        if last or late:
            self.facts.update({"out_of_time": 1} if late else {})
            await self.cut()
            return None
        known = len(self.blobs)
        return await self._next(sample, str(raw), await self._seen(turn.observation), known)

    async def _seen(self, observation: Any) -> Any:
        """An observation whose media, if it has any, are blobs of the episode and marks in its text."""
        if not has_parts(observation):
            return observation
        observation, more = await self._ask(partial(taken, observation, self.play.text.store))
        self.blobs += more
        return observation

    async def _next(self, sample: Sample, raw: str, observation: Any, known: int) -> IntArray | None:
        tokens_T, more = sample.tokens_T, self.blobs[known:]
        if isinstance(observation, Context):
            context_T = observation.tokens_T
        elif isinstance(observation, np.ndarray):
            context_T = np.concatenate([tokens_T, observation]).astype(np.int32)
        elif observation:
            try:
                context_T = self.rendering.extend(tokens_T, raw, observation, self.env.role, more)
            except (EnvError, ModelError) as error:
                raise self._failure("crashed", "cannot go on", str(error)) from error
        else:
            context_T = tokens_T
        grown = len(tokens_T) < len(context_T) and np.array_equal(context_T[: len(tokens_T)], tokens_T)
        if len(context_T) == len(tokens_T) and not observation:
            raise self._failure("crashed", "said nothing", "end the episode with terminated=True, or give an observation")
        if not grown:
            self._offset += len(tokens_T)
        if 0 < self.play.spec.tokens <= self._offset + len(context_T) - self._first:
            await self.cut()
            return None
        self._known = len(context_T)
        return context_T

    def sampling(self, given: Sampling) -> Sampling:
        return self.env.sampling(given)

    async def cut(self) -> None:
        if type(self.env).cut is not Env.cut and (last := await self._ask(self.env.cut)) is not None:
            self._earned(last)
        self._end(truncated=True)

    def _end(self, truncated: bool) -> IntArray | None:
        self._over, self.truncated, self.more = True, truncated, False
        return None

    def _earned(self, given: Any) -> Turn:
        """What an environment answers, once its reward and its metrics are counted."""
        turn = self._checked(given)
        if turn.reward is not None:
            self.turns[-1][2] = (self.turns[-1][2] or 0.0) + turn.reward
        self.facts.update({name: float(value) for name, value in turn.metrics.items()})  # type: ignore[arg-type]
        return turn

    def _checked(self, turn: Any) -> Turn:
        if not isinstance(turn, Turn):
            wanted = "return a Turn (from a function: text, or None to end the episode)"
            raise self._failure("crashed", f"gave {type(turn).__name__}", wanted)
        reward = turn.reward
        if reward is not None and (not isinstance(reward, int | float | np.number) or not abs(float(reward)) <= LARGEST_REWARD):
            raise self._failure("crashed", f"gave the reward {reward!r:.40}", f"a number within ±{LARGEST_REWARD:g}, or None")
        if not all(math.isfinite(value) for value in turn.metrics.values()):
            raise self._failure("crashed", "gave a metric that is not finite", repr(dict(turn.metrics)))
        return replace(turn, reward=None if reward is None else float(reward))

    async def _ask(self, function: Callable[..., Any], *given: Any) -> Any:
        deadline = self.play.spec.deadline
        try:
            return await self._call(function, deadline, *given)
        except StuckError as error:
            raise StuckError(f'environment "{self.play.spec.function}": {error}') from error
        except DeadlineError:
            raise self._failure("timed_out", f"took longer than {deadline:g} s", "raise environment.deadline") from None
        except Exception as error:
            self._lost = True
            what = "failed" if isinstance(error, PenstockError) else f"raised {type(error).__name__}"
            raise self._failure("crashed", what, str(error)) from error

    async def _call(self, function: Callable[..., Any], deadline: float, *given: Any) -> Any:
        if is_asynchronous(function):
            return await bounded(function(*given), deadline)
        return await self.play.threads.run(lambda: function(*given), deadline)

    def _failure(self, fact: str, what: str, detail: str) -> EnvError:
        self.facts[fact] += 1
        return EnvError(f'environment "{self.play.spec.function}" {what} in turn {max(1, len(self.turns))}: {detail}')

    def again(self) -> Conversation | None:
        """A second try in a fresh environment, once, where this one raised and may be repeated; counted as ``tried_again``. Its
        draws are those of the first, so that a sample whose environment was lost is what it would have been."""
        if not self._lost or not self.env.repeatable or self.facts["tried_again"]:
            return None
        second = Conversation(self.make_env, self.prompt, self.tokens_T, self.play)
        second.facts["tried_again"] = 1
        return second

    async def close(self) -> None:
        """Close the environment, also where the rollout is cancelled meanwhile; what fails is counted, the sample is kept."""
        if type(self.env).close is not Env.close and self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
            await asyncio.shield(self._closing)

    async def _close(self) -> None:
        try:
            await self._call(self.env.close, CLOSING)
        except Exception:
            self.facts["close_failed"] += 1

    def annotated(self, sample: Sample) -> Sample:
        ended = self._over and sample.error is None
        if ended and self.turns and self.env.rewards and all(turn[2] is None for turn in self.turns):
            self.turns[-1][2] = 0.0
        facts = {"turns": float(len(self.turns)), **self.facts, "truncated": float(ended and self.truncated)}
        extras = {**sample.extras, "turns": self.turns, "episode": {k: float(v) for k, v in facts.items()}}
        if ended:
            extras["truncated"] = self.truncated
        if self.play.spec.history == "mask" and PART in sample.columns:
            part_T = sample.columns[PART]
            kept_T = sample.action_T & (part_T == part_T[-1])
            extras[LEFT_OUT] = sample.action_T & ~kept_T
            sample = replace(sample, action_T=kept_T)
        for turn in sorted(self.env.unheard & set(range(len(self.turns)))):
            left_T = np.zeros(len(sample.action_T), bool)
            left_T[self.turns[turn][0] : self.turns[turn][1]] = True
            extras[LEFT_OUT] = extras.get(LEFT_OUT, False) | (left_T & sample.action_T)
            sample = replace(sample, action_T=sample.action_T & ~left_T)
        return replace(sample, extras=extras)


def in_parts(parts: Sequence[Sample]) -> Sample:
    """Samples of the renderings of one conversation as one trajectory, whose column ``part_T`` counts them."""
    if len(parts) == 1:
        return parts[0]
    if any(MEDIA in part.columns for part in parts):  # what was rendered before the first picture shows none
        none = [{MEDIA: np.zeros(len(part.action_T), np.int64)} for part in parts]
        parts = [replace(part, columns=blank | dict(part.columns)) for part, blank in zip(parts, none, strict=True)]
    last = parts[-1]
    names = [name for name in last.columns if all(name in part.columns for part in parts)]
    columns = {name: np.concatenate([part.columns[name] for part in parts]) for name in names}
    columns[PART] = np.repeat(np.arange(len(parts), dtype=np.int32), [len(part.action_T) for part in parts])
    steps: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts]) for name in ("action_T", "logp_T", "version_T")
    }
    return replace(last, columns=columns, **steps)
