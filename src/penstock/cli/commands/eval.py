"""``penstock eval RUN`` or ``penstock eval RECIPE --model FOLDER``: measure a model on held-out prompts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.cli.recipe import build, take, wants_help
from penstock.config.ask import Ask
from penstock.config.run import ModelSpec, Online, Run, Stage
from penstock.core.errors import SpecError

HELP = """usage: penstock eval RUN [--stage NAME]
       penstock eval RECIPE --model FOLDER [--stage NAME] [--field value …]

Measures a model on the held-out prompts and rewards of a stage's evaluation (default: the last stage that has one)."""


def run(words: Sequence[str]) -> int:
    """Evaluate and print metrics and a few samples."""
    words, own = take(words, model="", stage="")
    if wants_help(words):
        print(HELP)
        return 0
    if not words or words[0].startswith("-"):
        raise SpecError("eval takes a run or a recipe: penstock eval runs/NAME, or penstock eval RECIPE --model FOLDER")
    folder = Path(words[0])
    if (folder / "run.json").exists():
        from penstock.runtime.folder import RunFolder

        if words[1:]:
            raise SpecError(f'"{words[1]}": a run is evaluated as it was made; give a recipe to change fields')
        target = RunFolder(folder)
        made, model = target.read(), own["model"] or str(target.model)
        if not own["model"] and not target.model.is_dir():
            raise SpecError(f"{folder}: the run has no model yet; finish it with penstock train --resume {folder}")
    elif folder.is_dir() or (len(folder.parts) > 1 and ":" not in words[0]):
        raise SpecError(f"{folder}: no run.json here; this is not a run folder")
    else:
        made, model = build(words[0], words[1:]), own["model"]
        if not model:
            raise SpecError(f"name the model to evaluate: penstock eval {words[0]} --model FOLDER")
    metrics, groups = measure(pick(made, own["stage"]), made, folder, model)
    for name, value in metrics.items():
        print(f"{name.removeprefix('evaluation/'):<24}{value:.4g}")
    for group in groups[:5]:
        print(f"  {group.prompt.text!r} → {group.samples[0].text!r}  reward {group.samples[0].reward}")
    return 0


def pick(made: Run, name: str) -> Stage:
    """The stage to evaluate with: an online one, or one whose evaluation names rewards of generated samples."""
    trained = [s for s in made.stages if s.evaluation is not None and not isinstance(s, Ask)]
    able = [s for s in trained if s.evaluation is not None and (isinstance(s, Online) or s.evaluation.rewards)]
    chosen = [stage for stage in able if stage.name == name] if name else able[-1:]
    if not chosen:
        known = ", ".join(stage.name for stage in able)
        if not known:
            raise SpecError("no stage has an evaluation of samples; set evaluation=EvaluationSpec(data=…) in the recipe")
        raise SpecError(f"no stage{f' {name!r}' if name else ''} with an evaluation of samples; there are: {known}")
    return chosen[0]


def measure(stage: Stage, made: Run, folder: Path, model: str) -> tuple[dict[str, float], Sequence[Any]]:
    """Metrics and groups of one evaluation."""
    from penstock.runtime.around import alone
    from penstock.runtime.build import Models
    from penstock.runtime.folder import RunFolder
    from penstock.runtime.stages import prepare
    from penstock.train.device import set_up

    device = set_up(made.device, made.threads)
    models = Models(lambda name: RunFolder(folder).stage_model(made, name), device, made.seed)
    ready = prepare(replace(stage, model=ModelSpec(path=model)), alone(made), models, Path.cwd())

    async def once() -> tuple[dict[str, float], Sequence[Any]]:
        try:
            assert ready.evaluate is not None
            return await ready.evaluate()
        finally:
            await ready.close()

    return asyncio.run(once())
