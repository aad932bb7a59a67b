"""Tiny denoisers, and trajectories that they draw."""

import asyncio

import numpy as np

from penstock.config.denoising import Denoising, Pictures
from penstock.config.run import ModelSpec
from penstock.core.types import PromptKey, Request, SampleKey, Sampling
from penstock.engine.denoising import DenoisingGenerator
from penstock.models.diffusion.model import build_denoiser

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


def request(model, number=0, prompt="cat", temperature=1.0, resume=None):
    key = SampleKey(PromptKey("pictures", 0, number), 0)
    tokens_T = np.asarray(model.text.prompt(prompt), np.int32)
    return Request(key, tokens_T, Sampling(temperature=temperature, seed=3), resume)


def drawn(model, requests, **options):
    """The samples of requests that come together."""

    async def all_of_them():
        generator = DenoisingGenerator(model, **options)
        return await asyncio.gather(*(generator.generate(one) for one in requests))

    return asyncio.run(all_of_them())
