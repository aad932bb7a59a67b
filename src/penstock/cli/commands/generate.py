"""``penstock generate MODEL --prompt TEXT``: let a model answer."""

from __future__ import annotations

import asyncio
import sys
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.cli.extras import require
from penstock.cli.recipe import no_more_flags, require_device, take, wants_help
from penstock.core.errors import DataError, ModelError, RewardError, SpecError

HELP = """usage: penstock generate MODEL --prompt TEXT [--samples N] [--temperature T] [--max-new-tokens N]
                        [--top-p P] [--stop TEXT] [--seed N] [--chat] [--device auto|cpu|cuda]
                        [--best-by REWARD]
                        [--corrections STORE --tenant NAME [--request ID] [--embedder hashed|FOLDER]]
       penstock generate MODEL --prompts FILE.txt   (one prompt a line)

MODEL is a model folder (runs/NAME/model), a run folder, or a hub name. With --best-by only the best of the samples is
shown; REWARD is model:FOLDER (a reward model), the name of a reward, or FILE.py:FUNCTION. With --corrections, approved
corrections of a product's users stand before each prompt (docs/feedback_product.md), except in the arm without them."""


def run(words: Sequence[str]) -> int:
    """Generate and print."""
    left, own = take(
        words, prompt="", prompts="", samples=1, temperature=1.0, max_new_tokens=64, top_p=1.0, stop="", seed=0,
        chat=False, device="auto", best_by="", corrections="", tenant="", request="", embedder="hashed",
    )  # fmt: skip
    if wants_help(left):
        print(HELP)
        return 0
    no_more_flags(left, *own, "help")
    if len(left) != 1:
        raise SpecError("generate takes one model: penstock generate MODEL --prompt TEXT")
    if own["samples"] < 1:
        raise SpecError(f"--samples={own['samples']}; ask for at least 1")
    texts = read_prompts(own["prompt"], own["prompts"])
    from penstock.core.types import Sampling

    sampling = Sampling(
        temperature=own["temperature"],
        top_p=own["top_p"],
        max_new_tokens=own["max_new_tokens"],
        stop=(own["stop"],) if own["stop"] else (),
        seed=own["seed"],
    )
    require_device(own["device"])
    asked = with_corrections(texts, left[0], own)
    found = answer(left[0], asked, sampling, own["samples"], own["chat"], own["device"], own["best_by"])
    for text, (_, answers) in zip(texts, found, strict=True):
        for reply in answers:
            shown = f"{text}{reply}" if not own["chat"] else reply
            print(harmless(shown) if sys.stdout.isatty() else shown)
    return 0


def harmless(text: str) -> str:
    """Text for a terminal: control characters, which could restyle or command it, as ``�``; line ends and tabs stay."""
    return "".join("�" if unicodedata.category(sign) == "Cc" and sign not in "\n\t" else sign for sign in text)


def read_prompts(prompt: str, file: str) -> list[str]:
    """The prompts of a command line. Raises DataError for a missing or empty file, SpecError if there is none."""
    if prompt and file:
        raise SpecError("give either --prompt or --prompts, not both")
    if not file:
        if not prompt:
            raise SpecError("generate needs a prompt: --prompt TEXT or --prompts FILE.txt")
        return [prompt]
    if not Path(file).is_file():
        raise DataError(f"{Path(file).absolute()}: no such file")
    try:
        found = [line for line in Path(file).read_text(encoding="utf-8").split("\n") if line.strip()]
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: not UTF-8 ({error.reason} at byte {error.start}); convert the file") from error
    if not found:
        raise DataError(f"{file}: no prompts in it")
    return found


def with_corrections(texts: Sequence[str], model: str, own: Mapping[str, Any]) -> list[str]:
    """The prompts with what was corrected before, each in the arm of its request, which is told on standard error."""
    if not own["corrections"]:
        if own["tenant"] or own["request"]:
            raise SpecError("--tenant and --request go with --corrections STORE")
        return list(texts)
    if not own["tenant"]:
        raise SpecError("--corrections needs --tenant NAME: corrections are shown to nobody but their own product")
    require("generate --corrections", "feedback", "sqlalchemy", "alembic")
    from penstock.cli.commands.feedback import opened
    from penstock.feedback.corrections.search import Corrections
    from penstock.feedback.product.log import tenant
    from penstock.feedback.product.source import embedder_of
    from penstock.feedback.records import digest
    from penstock.models.files import load_text

    marks, made = load_text(model_path(model)).marks, []
    with opened(own["corrections"]) as store:
        corrections = Corrections(store, tenant(store, own["tenant"]), embedder_of(own["embedder"], Path.cwd()))
        for place, text in enumerate(texts):
            request = own["request"] or digest(text)[:16]
            request += f"/{place}" if len(texts) > 1 else ""
            found = corrections.retrieve(text, request, marks)
            print(f"request {request}: {found.arm}, {len(found.used)} used", file=sys.stderr)
            made.append(found.text + text)
    return made


def answer(
    name: str, texts: Sequence[str], sampling: Any, samples: int, chat: bool, device: str, best_by: str = ""
) -> list[tuple[str, list[str]]]:
    """(prompt, answers) of each prompt; the one that ``best_by`` scores highest, if a reward is named."""
    from penstock.core.types import Group, Prompt, PromptKey, Request, SampleKey
    from penstock.engine.encoder_decoder import embedded_generator
    from penstock.models.files import load_model
    from penstock.runtime.build import prompt_tokens
    from penstock.train.device import set_up

    where = set_up(device, 0)
    model = load_model(model_path(name)).to(where)
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
        drawn = await asyncio.gather(*asked)
        groups = [Group(p, tuple(drawn[i * samples : (i + 1) * samples])) for i, p in enumerate(prompts)]
        return [await pick(group) for group in groups] if pick else groups

    pick = best_sample(best_by, where, model.text) if best_by else None
    return [(text, [s.text for s in group.samples]) for text, group in zip(texts, asyncio.run(everything()), strict=True)]


def best_sample(reward: str, device: Any, text: Any) -> Callable[[Any], Any]:
    """A function that leaves a group its best sample. Raises RewardError where a sample cannot be scored."""
    from penstock.algos.best_of import choose
    from penstock.config.run import RewardSpec
    from penstock.runtime.build import Models, StageRewards

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


def model_path(name: str) -> str:
    """A run folder stands for the model in it. Raises ModelError where a run has none yet."""
    if not (Path(name) / "run.json").exists():
        return name
    inside = Path(name) / "model"
    if not inside.is_dir():
        raise ModelError(f"{name}: the run has no model yet; finish it with penstock train --resume {name}")
    return str(inside)
