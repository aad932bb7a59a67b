"""Episodes of an environment through a real generator, rewarded by what the environment says."""

import asyncio
import sys
from pathlib import Path

import tiny_models

sys.path.insert(0, str(Path(__file__).parents[1] / "envs"))

from templates import family

from penstock.config.parts import RewardSpec
from penstock.core.types import Prompt, PromptKey, Sampling
from penstock.engine.generator import EmbeddedGenerator
from penstock.envs.making import conversations
from penstock.loops.rollout import Rollout
from penstock.rewards.runner import Mixture

FLAT = Sampling(max_new_tokens=6, temperature=1e6)
"""Draws anything alike."""


def prompt_with(**columns):
    """A prompt of one message, and its row."""
    return Prompt(PromptKey("test", 0, 0), "what is", ({"role": "user", "content": "what is"},), columns)


def model_of(template):
    """A tiny model whose chat template is of that family."""
    return tiny_models.build("qwen2", family(template, tiny_models.CORPUS))


def group_of_episodes(model, spec, prompt, samples, sampling=FLAT, make_generator=EmbeddedGenerator, then=None):
    """A group, and the generator; ``then()`` is awaited before rewards are closed."""
    mixture = Mixture((RewardSpec(function="environment"),))
    roll = Rollout(make_generator(model), conversations(spec, model.text, None), mixture, sampling, samples)

    async def main():
        group = await roll.group(prompt)
        if then is not None:
            await then()
        await mixture.close()
        return group, roll.generator

    return asyncio.run(main())
