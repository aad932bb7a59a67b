"""The rollout loop: slot → prompt → generate → reward → group into the stream."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from penstock.core.contracts import Env, Generator, PromptSource, Reward
from penstock.core.errors import ContextFull, EnvError, GenerationError
from penstock.core.tape import NO_TAPE, Tape
from penstock.core.types import Group, Prompt, Request, Sample, SampleKey, Sampling, Version
from penstock.models.experts import earlier
from penstock.stream.entry import Ticket
from penstock.stream.gate import UNLIMITED
from penstock.stream.stream import Worker

MakeEnv = Callable[[Prompt], Env]
Hold = Callable[[Version], Awaitable[None]]


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
        """One trajectory: policy and environment take turns until the environment is done.

        A first prompt that does not fit is an error of the data and raised; a later turn that fails marks this sample only. An
        episode that has filled the context is over: cut at its longest length, and scored as it is.
        """
        env = self.make_env(prompt)
        request = replace(Request(key, env.reset(), sampling, blobs=prompt.blobs), keep=env.more)
        sample = await self._answer(request)
        turn = 0
        try:
            while sample.finish in ("stop", "length") and (observation_T := await env.step(sample)) is not None:
                turn += 1
                request = replace(request, keep=env.more)
                again = replace(
                    request,
                    tokens_T=np.concatenate([sample.tokens_T, observation_T]).astype(np.int32),
                    sampling=replace(sampling, seed=sampling.seed + turn),  # or the turn would repeat the draws
                )
                sample = _joined(sample, await self._answer(again))
        except ContextFull:
            return replace(sample, finish="length")
        except (EnvError, GenerationError) as error:
            sample = sample.failed(f"{type(error).__name__}: turn {turn + 1} of {key}: {error}")
        if request.keep:
            await self.generator.abort([key])  # the next turn that its cache was kept for does not come
        return sample

    async def _answer(self, request: Request) -> Sample:
        """One whole answer: what an update aborted (``kv="abort"``) goes on where it stopped."""
        sample = await self.generator.generate(request)
        while sample.finish == "abort":
            sample = await self.generator.generate(replace(request, resume=sample))
        return sample


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
