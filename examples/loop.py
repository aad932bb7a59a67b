"""A loop of one's own: a whole GRPO run on the public primitives, for whoever wants to change what no recipe can.

The generator samples, the stream admits and hands out, the learner steps; all three are contracts (docs/concepts.md). A small
model from scratch is rewarded for vowels; less than a minute on a laptop CPU.
"""

from __future__ import annotations

import argparse
import asyncio
from dataclasses import replace

import numpy as np

from penstock.algos import GRPO
from penstock.config.learner import LearnerSpec
from penstock.config.parts import ModelSpec
from penstock.core.contracts import Denominator
from penstock.core.types import Group, Prompt, PromptKey, Request, Sample, SampleKey, Sampling
from penstock.engine.encoder_decoder import embedded_generator
from penstock.models.language_policy import LanguagePolicy
from penstock.models.scratch import build_model
from penstock.stream.entry import Ticket
from penstock.stream.rules import Rules
from penstock.stream.stream import Stream, Worker
from penstock.train.device import set_up
from penstock.train.learner import LearnerPlan
from penstock.train.ranks import learner_of
from penstock.weights.alias import AliasChannel

LETTERS = "abcdefghijklmnopqrstuvwxyz"
BATCH, SAMPLES = 8, 8
"""Prompts of a training batch; samples of a prompt."""
SAMPLING = Sampling(max_new_tokens=6, seed=0)


def prompt_of(ordinal: int) -> Prompt:
    """The data: the ordinal-th prompt, whichever step asks for it."""
    epoch, place = divmod(ordinal, len(LETTERS) - 1)
    return Prompt(PromptKey("letters", epoch, place), LETTERS[place : place + 2])


def reward(sample: Sample) -> float:
    """What is wanted: vowels; their share of the answer."""
    return sum(letter in "aeiou" for letter in sample.text) / max(1, len(sample.text))


async def group_of(ticket: Ticket, generator, text) -> Group:
    """The scored samples of one prompt. The reward of an answer lands on its last action."""
    prompt = prompt_of(ticket.ordinal)
    tokens_T = np.asarray(text.encode(prompt.text), np.int32)
    requests = [Request(SampleKey(prompt.key, g), tokens_T, SAMPLING) for g in range(SAMPLES)]
    samples = await asyncio.gather(*map(generator.generate, requests))
    return Group(prompt, tuple(scored(sample) for sample in samples))


def scored(sample: Sample) -> Sample:
    reward_T = np.zeros(len(sample.action_T), np.float32)
    reward_T[np.flatnonzero(sample.action_T)[-1]] = reward(sample)
    return replace(sample, reward_T=reward_T)


async def rollout(worker: Worker, generator, text) -> None:
    """Start a group for every slot that the stream gives, for ever; with max_lag=0 it waits for the learner's next weights."""

    async def one(ticket: Ticket) -> None:
        await worker.put(ticket, await group_of(ticket, generator, text))

    async with asyncio.TaskGroup() as groups:
        while True:
            for ticket in await worker.admit(most=BATCH):
                groups.create_task(one(ticket))


async def learn(stream: Stream, learner, channel, steps: int) -> list[float]:
    """Lease a batch, label it, accumulate its micro-batches under one denominator, step, publish; gives the mean rewards."""
    algorithm, rewards = GRPO(), []
    loss = algorithm.loss()
    for version in range(steps):
        lease = await stream.lease(version)
        units = algorithm.label(lease.groups, {}, {})
        denominator = Denominator.of(units)
        for batch in learner.lay_out(units):
            learner.accumulate(batch, loss, denominator)
        learner.flush()
        learner.step()
        await channel.publish(version + 1)
        await stream.release(lease.number)  # its slots open: the rollout goes on
        rewards.append(float(np.mean([sample.reward for group in lease.groups for sample in group.samples])))
        print(f"step {version + 1:>3}  reward {rewards[-1]:.2f}", flush=True)
    return rewards


async def train(steps: int, max_lag: int = 0) -> list[float]:
    """The mean reward of every batch."""
    device = set_up("cpu", 0)
    spec = ModelSpec(preset="1m", layers=1, vocabulary=300, context=32)
    model = build_model(spec, [LETTERS], seed=0).to(device)
    learner = learner_of(LanguagePolicy(model), LearnerSpec(learning_rate=3e-3), LearnerPlan(total_steps=steps, seed=0))
    generator = embedded_generator(model)  # reads the learner's own parameters, so that publishing costs nothing
    stream, channel = Stream(Rules(BATCH, max_lag)), AliasChannel([generator])
    generating = asyncio.create_task(rollout(Worker(stream, "generator"), generator, model.text))
    try:
        return await learn(stream, learner, channel, steps)
    finally:
        generating.cancel()
        learner.close()


if __name__ == "__main__":
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--steps", type=int, default=40)
    asyncio.run(train(given.parse_args().steps))
