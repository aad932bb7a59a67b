"""Answers of a model to prompts at hand, all of them or the best."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.algos.best_of import choose
from penstock.config.learner import Dtype
from penstock.config.media import MARKS, Media
from penstock.config.run import DataSpec, RewardSpec
from penstock.core.errors import RewardError, SpecError
from penstock.core.types import Group, Prompt, PromptKey, Request, SampleKey
from penstock.data.texts import prompt_tokens
from penstock.data.units import prompts_of
from penstock.engine.encoder_decoder import embedded_generator
from penstock.models.families import language_model
from penstock.models.language_model import LanguageModel
from penstock.models.text import Text
from penstock.runtime.build import Models, StageRewards, reading
from penstock.train.device import set_up


def opened(name: str, device: str, dtype: Dtype = "float32", media: Media | None = None) -> LanguageModel:
    """The model of a folder or hub name on a device; the ``media`` that it reads are held in memory."""
    return reading(language_model(name, dtype=dtype, media=media).to(set_up(device, 0)), media, None)


def asked(texts: Sequence[str], chat: bool) -> list[Prompt]:
    """Prompts of texts; in ``chat`` each is a user's message."""
    said = [({"role": "user", "content": text},) if chat else () for text in texts]
    return [Prompt(PromptKey("prompt", 0, i), text, said[i]) for i, text in enumerate(texts)]


def asked_of_rows(data: DataSpec, text: Text) -> tuple[list[Mapping[str, Any]], list[Prompt]]:
    """The rows of a data set in their order, as they are, and their prompts with their media.

    Raises:
        DataError: a row has no prompt, or a medium of it cannot be read.
        SpecError: a prompt has a mark of a medium and the model reads text alone.
    """
    sampler = prompts_of(replace(data, shuffle=False), Path.cwd(), 0, text)
    found = [sampler(ordinal) for ordinal in range(len(sampler))]
    marks = [mark for mark in MARKS.values() for prompt in found if mark in prompt.text]
    if marks and text.store is None:
        raise SpecError(f"{data.source}: a prompt has the mark {marks[0]}, and the model reads text alone; give --media")
    return [sampler.source[sampler.index(ordinal)] for ordinal in range(len(sampler))], found


def answer(model: LanguageModel, prompts: Sequence[Prompt], sampling: Any, samples: int, best_by: str = "") -> list[list[str]]:
    """The answers to each prompt; the one that ``best_by``, the function of a reward, scores highest, if it is named.

    Raises:
        GenerationError: a prompt does not fit the context.
        ModelError: a prompt has more or fewer marks than media.
    """

    async def everything() -> list[Any]:
        generator = embedded_generator(model)
        found = await asyncio.gather(
            *(
                generator.generate(Request(SampleKey(p.key, s), prompt_tokens(p, model.text), sampling, blobs=p.blobs))
                for p in prompts
                for s in range(samples)
            )
        )
        groups = [Group(p, tuple(found[i * samples : (i + 1) * samples])) for i, p in enumerate(prompts)]
        return [await pick(group) for group in groups] if pick else groups

    pick = best_sample(best_by, model.device, model.text) if best_by else None
    return [[sample.text for sample in group.samples] for group in asyncio.run(everything())]


def best_sample(reward: str, device: Any, text: Any) -> Callable[[Any], Any]:
    """A function that leaves a group its best sample. Raises RewardError where a sample cannot be scored."""

    def no_stage(name: str) -> Path:
        raise SpecError(f'--best-by: "@{name}" names a stage, and there is no run here; give the folder of a model')

    rewards = StageRewards((RewardSpec(function=reward),), Models(no_stage, device, 0), text, Path.cwd())

    async def pick(group: Any) -> Any:
        scored = await rewards(group)
        failed = [sample.error for sample in scored.samples if sample.error is not None]
        if failed:
            raise RewardError(failed[0].removeprefix("RewardError: "))
        best = choose([float(sample.reward or 0.0) for sample in scored.samples])
        return replace(scored, samples=(scored.samples[best],))

    return pick
