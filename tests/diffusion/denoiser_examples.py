"""Tiny denoisers, and trajectories that they draw."""

import asyncio

import numpy as np

from penstock.config.denoising import Denoising, Pictures
from penstock.config.run import ModelSpec
from penstock.core.types import Group, Prompt, PromptKey, Request, Row, SampleKey, Sampling
from penstock.engine.denoising import DenoisingGenerator
from penstock.models.diffusion.model import build_denoiser
from penstock.models.diffusion.policy import DiffusionPolicy
from penstock.train.learner import Scoring

DDIM = Denoising(kernel="ddim", noise=1.0)
KINDS = {
    "flow": Denoising(steps=6),
    "dance": Denoising(kernel="dance", noise=0.3, steps=6),
    "ddim": Denoising(kernel="ddim", noise=1.0, steps=6),
    "ddim, clipped": Denoising(kernel="ddim", noise=0.5, steps=6, clip=True),
    "longer in noise": Denoising(steps=6, shift=3.0),
}


def tiny(denoising=KINDS["flow"], shape=(1, 4, 4), seed=0):
    """A denoiser of three prompts whose blocks do something from the start."""
    import torch

    pictures = Pictures(shape=shape, prediction=denoising.prediction)
    spec = ModelSpec(denoiser=pictures, vocabulary=259, context=16, layers=1)
    model = build_denoiser(spec, ["cat", "a dog", "seven"], seed)
    with torch.no_grad():
        for name, parameter in model.network.named_parameters():
            if "down" in name:
                parameter.normal_(0, 0.02, generator=torch.Generator().manual_seed(seed))
    model.draw(denoising)
    return model


def request(model, number=0, prompt="cat", temperature=1.0, resume=None, sample=0):
    key = SampleKey(PromptKey("pictures", 0, number), sample)
    tokens_T = np.asarray(model.text.prompt(prompt), np.int32)
    return Request(key, tokens_T, Sampling(temperature=temperature, seed=3), resume)


def drawn(model, requests, **options):
    """The samples of requests that come together."""

    async def all_of_them():
        generator = DenoisingGenerator(model, **options)
        return await asyncio.gather(*(generator.generate(one) for one in requests))

    return asyncio.run(all_of_them())


def scored(model, rewards, number=0, prompt="cat", temperature=1.0):
    """A prompt with a sample for each reward."""
    samples = drawn(model, [request(model, number, prompt, temperature, sample=n) for n in range(len(rewards))])
    key = PromptKey("pictures", 0, number)
    return Group(Prompt(key, prompt), tuple(one.scored(reward) for one, reward in zip(samples, rewards, strict=True)))


def units_of(samples):
    """Each sample as a unit without a label."""
    return [(Row(sample.columns, sample.action_T),) for sample in samples]


def labelled(samples):
    """Units with advantages of both signs, as an algorithm labels them."""
    rows = []
    for place, sample in enumerate(samples):
        logp_A = sample.logp_T[sample.action_T]
        fields = {"advantage": np.full_like(logp_A, 1.0 - 2 * (place % 2)), "old_logp": logp_A, "weight": np.ones_like(logp_A)}
        rows.append(Row(sample.columns, sample.action_T, fields))
    return [(row,) for row in rows]


def logps(scorer, samples, budget=10**6):
    """What a policy, or its reference, computes for the transitions of each sample."""
    return Scoring(scorer, budget).score(units_of(samples), frozenset({"logp"}))["logp"]


def assert_log_probs_are_the_learners(model, samples, budget=10**6):
    for sample, logp_A in zip(samples, logps(DiffusionPolicy(model), samples, budget), strict=True):
        assert np.abs(logp_A - sample.logp_T[sample.action_T]).max() < 1e-5


async def begun(generator, one, step):
    """A task that draws, once so many steps were taken."""
    task = asyncio.create_task(generator.generate(one))
    while not generator.running or generator.running[0].step < step:
        await asyncio.sleep(0)
    return task


async def aborted_and_resumed(generator, model, step, version=0):
    """A trajectory that was aborted after so many steps, and what it went on to be, under weights of this version."""
    task = await begun(generator, request(model), step)
    (part,) = await generator.abort([request(model).key])
    assert (await task).finish == part.finish == "abort"
    generator.version = version
    return part, await generator.generate(request(model, resume=part))
