"""Answers of a model to prompts at hand, all of them or the best."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.algos.best_of import choose
from penstock.config.learner import Dtype
from penstock.config.run import RewardSpec
from penstock.core.errors import RewardError, SpecError
from penstock.core.types import Group, Prompt, PromptKey, Request, SampleKey
from penstock.data.texts import prompt_tokens
from penstock.engine.encoder_decoder import embedded_generator
from penstock.models.families import language_model
from penstock.runtime.build import Models, StageRewards
from penstock.train.device import set_up


def answer(
    name: str, texts: Sequence[str], sampling: Any, samples: int, chat: bool, device: str, best_by: str = "",
    dtype: Dtype = "float32",
) -> list[tuple[str, list[str]]]:  # fmt: skip
    """(prompt, answers) of each prompt; the one that ``best_by`` scores highest, if a reward is named.

    Args:
        name: folder or hub name of the model.
        texts: the prompts.
        sampling: how tokens are sampled.
        samples: answers to each prompt.
        chat: prompts are a user's messages, put into the model's chat template.
        device: where the model runs.
        best_by: the function of a reward.
        dtype: arithmetic of the model.
    """
    where = set_up(device, 0)
    model = language_model(name, dtype=dtype).to(where)
    prompts = [
        Prompt(PromptKey("prompt", 0, i), text, ({"role": "user", "content": text},) if chat else ())
        for i, text in enumerate(texts)
    ]

    async def everything() -> list[Any]:
        generator = embedded_generator(model)
        asked = [
            generator.generate(Request(SampleKey(p.key, s), prompt_tokens(p, model.text), sampling))
            for p in prompts
            for s in range(samples)
        ]
        samples_found = await asyncio.gather(*asked)
        groups = [Group(p, tuple(samples_found[i * samples : (i + 1) * samples])) for i, p in enumerate(prompts)]
        return [await pick(group) for group in groups] if pick else groups

    pick = best_sample(best_by, where, model.text) if best_by else None
    return [(text, [s.text for s in group.samples]) for text, group in zip(texts, asyncio.run(everything()), strict=True)]


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
