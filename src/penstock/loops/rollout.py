"""The rollout loop: slot → prompt → generate → reward → group into the stream."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from penstock.core.contracts import Generator, PromptSource, Reward
from penstock.core.errors import ContextFull, EnvError, GenerationError
from penstock.core.tape import NO_TAPE, Tape
from penstock.core.types import TOKENS, Group, IntArray, Prompt, Request, Sample, SampleKey, Sampling, Version
from penstock.envs.episode import Episode, in_parts
from penstock.models.experts import earlier
from penstock.stream.entry import Ticket
from penstock.stream.gate import UNLIMITED
from penstock.stream.stream import Worker

MakeEnv = Callable[[Prompt], Episode]
Hold = Callable[[Version], Awaitable[None]]
NO_TOKENS = np.zeros(0, np.int32)


@dataclass(frozen=True)
class Rollout:
    """What turns a prompt into a scored group."""

    generator: Generator
    make_env: MakeEnv
    reward: Reward
    sampling: Sampling
    samples: int
    greedy: bool = False
    """Whether to add one greedy sample, the last, marked by ``extras["greedy"]``: a baseline that is never trained on."""
    tape: Tape = NO_TAPE
    """Where the generator's schedule is recorded."""

    async def group(self, prompt: Prompt) -> Group:
        """Generate the samples of a prompt side by side, each in an environment of its own, then score them."""
        drawing = [self._sample(prompt, SampleKey(prompt.key, g), self.sampling) for g in range(self.samples)]
        if self.greedy:
            drawing.append(self._greedy(prompt))
        return await self.reward(Group(prompt, tuple(await asyncio.gather(*drawing))))

    async def _greedy(self, prompt: Prompt) -> Sample:
        sample = await self._sample(prompt, SampleKey(prompt.key, self.samples), replace(self.sampling, temperature=0.0))
        return replace(sample, extras={**sample.extras, "greedy": True})

    async def _sample(self, prompt: Prompt, key: SampleKey, sampling: Sampling) -> Sample:
        """One trajectory: policy and environment take turns until the environment is done, which is closed whatever happens.

        A first prompt that does not fit is an error of the data and raised; an environment that fails, or a later turn, marks
        this sample only, once a second try in a fresh environment has failed, too. An episode that has filled the context is
        over: cut, and scored as it is.
        """
        following: Episode | None = self.make_env(prompt)
        while following is not None:
            episode = following
            try:
                sample = await self._turns(episode, Request(key, NO_TOKENS, sampling, blobs=prompt.blobs))
            finally:
                await episode.close()
            following = episode.again()
        return episode.annotated(sample)

    async def _turns(self, episode: Episode, request: Request) -> Sample:
        """A trajectory from as many requests as there are turns; of several parts where the conversation was rendered anew."""
        try:
            given, tokens_T = request.blobs, await episode.reset()
            request = replace(request, tokens_T=tokens_T, blobs=(*given, *episode.blobs), keep=episode.more)
            sampling, request = request.sampling, replace(request, sampling=episode.sampling(request.sampling))
        except EnvError as error:
            return unbegun(request.key, episode.tokens_T, str(error))
        try:
            parts, turn, kept = [await self._answer(request)], 0, request.keep
        except ContextFull as error:
            if not episode.own_prompts:
                raise
            return unbegun(request.key, request.tokens_T[:1], str(error))
        try:
            while parts[-1].finish in ("stop", "length") and (context_T := await episode.step(parts[-1])) is not None:
                turn += 1
                again = episode.sampling(replace(sampling, seed=sampling.seed + turn))  # or the turn would repeat the draws
                seen = (*given, *episode.blobs)
                request = replace(request, tokens_T=context_T, blobs=seen, keep=episode.more, sampling=again)
                try:
                    answer, kept = await self._answer(request), request.keep
                except ContextFull:
                    await episode.cut()
                    parts[-1] = replace(parts[-1], finish="length")
                    break
                grown = np.array_equal(context_T[: len(parts[-1].tokens_T)], parts[-1].tokens_T)
                parts[-1:] = [_joined(parts[-1], answer)] if grown else [parts[-1], answer]
        except (EnvError, GenerationError) as error:
            parts[-1] = parts[-1].failed(f"{type(error).__name__}: turn {turn + 1} of {request.key}: {error}")
        finally:
            if kept:
                await self.generator.abort([request.key])  # the next turn that its cache was kept for does not come
        return in_parts(parts)

    async def _answer(self, request: Request) -> Sample:
        """One whole answer: what an update aborted (``kv="abort"``) goes on where it stopped."""
        sample = await self.generator.generate(request)
        while sample.finish == "abort":
            sample = await self.generator.generate(replace(request, resume=sample))
        return sample


def unbegun(key: SampleKey, tokens_T: IntArray, error: str) -> Sample:
    """The sample of an environment that failed before its first turn: the prompt's tokens and no action."""
    count = len(tokens_T)
    none_T, version_T = np.zeros(count, np.float32), np.full(count, -1, np.int32)
    sample = Sample(key, {TOKENS: tokens_T}, np.zeros(count, bool), none_T, version_T, "error")
    return sample.failed(f"EnvError: before the first turn of {key}: {error}")


def _joined(before: Sample, after: Sample) -> Sample:
    """``after`` went on from ``before`` plus an observation: its columns know the earlier actions again, and their routes."""
    known = len(before.action_T)
    columns = {name: getattr(after, name).copy() for name in ("action_T", "logp_T", "version_T")}
    for name, column in columns.items():
        column[:known] = getattr(before, name)
    return replace(after, columns=earlier(before.columns, after.columns), **columns)


async def rollout(
    stream: Worker,
    prompts: PromptSource,
    roll: Rollout,
    hold: Hold | None = None,
    most: int = UNLIMITED,
    within: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
) -> None:
    """Start a group for every ticket, for ever.

    Takes tickets from the stream, at most ``most`` at a time, and prompts by ordinal; gives groups to the stream. Waits while
    all slots are taken; unblocked when the learner has published. ``hold`` waits until the generator holds a version, which
    must be the ticket's ``min_version`` or younger before its group is begun. Groups of tickets that came together are begun
    together, before the first decode step, each ``within`` what may keep groups and weight updates apart. A group whose ticket
    is revoked is cancelled. A failure to generate ends the loop with its error.
    """
    running: dict[Ticket, asyncio.Task[None]] = {}
    origins: dict[Ticket, str] = {}

    async def one(ticket: Ticket) -> None:
        if hold is not None:
            await hold(ticket.min_version)
        async with within():
            origins[ticket] = origin = roll.tape.begin(ticket.ordinal)
            group = await roll.group(prompts(ticket.ordinal))
        roll.tape.flush()
        await stream.put(ticket, replace(group, origin=origin))

    async def cancel_revoked() -> None:
        while True:
            for ticket in await stream.revoked():
                if ticket in running:
                    if ticket in origins:
                        roll.tape.note("drop", origins[ticket])
                    running[ticket].cancel()

    revoking = asyncio.create_task(cancel_revoked())
    admission: asyncio.Future[list[Ticket]] | None = None
    try:
        while True:
            if admission is None:
                admission = asyncio.ensure_future(stream.admit(most=most, max_in_flight=most))
            waits: set[asyncio.Future[Any]] = {*running.values(), revoking, *([admission] if admission else [])}
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for ticket in [ticket for ticket, task in running.items() if task.done()]:
                ended = running.pop(ticket)
                origins.pop(ticket, None)
                ended.cancelled() or ended.result()
            if revoking in done:
                revoking.result()
            if admission is not None and admission.done():
                running |= {ticket: asyncio.create_task(one(ticket)) for ticket in admission.result()}
                admission = None
    finally:
        ended_now: list[asyncio.Future[Any]] = [revoking, *([admission] if admission else []), *running.values()]
        for task in ended_now:
            task.cancel()
