"""``penstock generate MODEL --prompt TEXT``: let a model answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from penstock.cli.recipe import no_more_flags, take, wants_help
from penstock.core.errors import DataError, ModelError, SpecError

HELP = """usage: penstock generate MODEL --prompt TEXT [--samples N] [--temperature T] [--max-new-tokens N]
                        [--top-p P] [--stop TEXT] [--seed N] [--chat] [--device auto|cpu|cuda]
       penstock generate MODEL --prompts FILE.txt   (one prompt a line)

MODEL is a model folder (runs/NAME/model), a run folder, or a hub name."""


def run(words: Sequence[str]) -> int:
    """Generate and print."""
    left, own = take(
        words, prompt="", prompts="", samples=1, temperature=1.0, max_new_tokens=64, top_p=1.0, stop="", seed=0,
        chat=False, device="auto",
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
    if own["device"] not in ("auto", "cpu", "cuda"):
        raise SpecError(f"--device={own['device']} is not one of auto, cpu, cuda")
    for text, answers in answer(left[0], texts, sampling, own["samples"], own["chat"], own["device"]):
        for reply in answers:
            print(f"{text}{reply}" if not own["chat"] else reply)
    return 0


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


def answer(name: str, texts: Sequence[str], sampling, samples: int, chat: bool, device: str):  # type: ignore[no-untyped-def]
    """(prompt, answers) of each prompt."""
    from penstock.cli.build import prompt_tokens
    from penstock.core.types import Prompt, PromptKey, Request, SampleKey
    from penstock.engine.encoder_decoder import embedded_generator
    from penstock.models.files import load_model
    from penstock.train.device import set_up

    where = set_up(device, 0)
    model = load_model(model_path(name)).to(where)
    prompts = [
        Prompt(PromptKey("prompt", 0, i), text, ({"role": "user", "content": text},) if chat else ())
        for i, text in enumerate(texts)
    ]

    async def everything():  # type: ignore[no-untyped-def]
        generator = embedded_generator(model)
        asked = [
            generator.generate(Request(SampleKey(p.key, s), prompt_tokens(p, model.text), sampling))
            for p in prompts
            for s in range(samples)
        ]
        return await asyncio.gather(*asked)

    drawn = asyncio.run(everything())
    return [(text, [s.text for s in drawn[i * samples : (i + 1) * samples]]) for i, text in enumerate(texts)]


def model_path(name: str) -> str:
    """A run folder stands for the model in it. Raises ModelError where a run has none yet."""
    if not (Path(name) / "run.json").exists():
        return name
    inside = Path(name) / "model"
    if not inside.is_dir():
        raise ModelError(f"{name}: the run has no model yet; finish it with penstock train --resume {name}")
    return str(inside)
