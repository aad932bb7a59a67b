"""The rollout loop: slot → prompt → generate → reward → group into the stream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from penstock.core.contracts import Env, Generator, PromptSource, Reward
from penstock.core.errors import EnvError, GenerationError
from penstock.core.types import Group, Prompt, Request, Sample, SampleKey, Sampling
from penstock.flow.stream import Stream

MakeEnv = Callable[[Prompt], Env]


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

        A first prompt that does not fit is an error of the data and raised; a later turn that fails marks this sample only.
        """
        env = self.make_env(prompt)
        request = Request(key, env.reset(), sampling)
        sample = await self._answer(request)
        turn = 0
        try:
            while sample.finish in ("stop", "length") and (observation_T := await env.step(sample)) is not None:
                turn += 1
                again = replace(
                    request,
                    tokens_T=np.concatenate([sample.tokens_T, observation_T]).astype(np.int32),
                    sampling=replace(sampling, seed=sampling.seed + turn),  # or the turn would repeat the draws
                )
                sample = _joined(sample, await self._answer(again))
        except (EnvError, GenerationError) as error:
            return sample.failed(f"{type(error).__name__}: turn {turn + 1} of {key}: {error}")
        return sample

    async def _answer(self, request: Request) -> Sample:
        """One whole answer: what an update aborted (``kv="abort"``) goes on where it stopped."""
        sample = await self.generator.generate(request)
        while sample.finish == "abort":
            sample = await self.generator.generate(replace(request, resume=sample))
        return sample


def _joined(before: Sample, after: Sample) -> Sample:
    """``after`` went on from ``before`` plus an observation: its columns know the earlier actions again."""
    known = len(before.tokens_T)
    columns = {name: getattr(after, name).copy() for name in ("action_T", "logp_T", "version_T")}
    for name, column in columns.items():
        column[:known] = getattr(before, name)
    return replace(after, **columns)


async def rollout(stream: Stream, prompts: PromptSource, roll: Rollout) -> None:
    """Start a group for every slot, for ever.

    Takes slots from the stream and prompts by ordinal; gives scored groups to the stream. Waits while all slots are taken;
    unblocked when the learner has published. A failure to generate ends the loop with its error.
    """

    async def one(ordinal: int) -> None:
        await stream.put(ordinal, await roll.group(prompts(ordinal)))

    running: set[asyncio.Task[None]] = set()
    try:
        admission = asyncio.ensure_future(stream.admit())
        while True:
            await asyncio.wait({admission, *running}, return_when=asyncio.FIRST_COMPLETED)
            for group in [group for group in running if group.done()]:
                group.result()
                running.discard(group)
            if admission.done():
                running.add(asyncio.create_task(one(admission.result())))
                admission = asyncio.ensure_future(stream.admit())
    finally:
        for task in (admission, *running):
            task.cancel()
