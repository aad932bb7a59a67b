"""What can be known of all stages before the first one starts: a typo in the last stage must not cost an hour."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.config.run import DataSpec, Online, RewardSpec, Run, models_behind
from penstock.config.strategies import OneDevice, refuse_shape
from penstock.core.errors import ModelError, PenstockError
from penstock.core.types import PromptKey
from penstock.data.render import Renderer
from penstock.data.resolve import resolve
from penstock.data.sources import is_function, open_source
from penstock.models.presets import pipeline_of, require_drawing, shape_behind
from penstock.rewards.runner import Mixture
from penstock.runtime.pinning import asked
from penstock.runtime.sole import require_more_than_signals


def check_stages(run: Run, base: Path) -> None:
    """Look up every file, function and folder that a run names, and render the first row of every file.

    Loads no model, downloads nothing and calls no function of the user's.

    Raises:
        PenstockError: something is missing or does not fit; names the stage.
    """
    require_more_than_signals(run)
    check_shapes(run)
    seen: list[tuple[DataSpec, str]] = []
    for stage in run.stages:
        with named(stage.name):
            if stage.asks:
                check_ask(stage)
            for rewards in stage.mixtures():
                check_rewards(rewards, base)
            if stage.environment is not None:
                stage.environment.check(base)
            if isinstance(stage, Online) and stage.algorithm.judge:
                resolve(stage.algorithm.judge, base)
            for data in stage.sources:
                if (data, stage.row_kind) not in seen and data.source not in asked(run, stage):
                    check_data(data, stage.row_kind, base)
                    seen.append((data, stage.row_kind))
            for path in stage.models():
                check_model(path)
            require_drawing(stage, run)


def check_ask(stage: Any) -> None:
    """The mix and the gate of a stage that asks."""
    from penstock.feedback.select import Mix
    from penstock.feedback.verdicts import gate_of

    Mix(stage.mix)
    gate_of(stage.gate)


def check_shapes(run: Run) -> None:
    """Refuse models that the strategies of their stages cannot cut. Those of a hub, and of configurations with other fields
    than Llama's, are looked at when their stage begins.

    Raises:
        ModelError: names the stage.
    """
    for stage in run.stages:
        if isinstance(stage.strategy, OneDevice):
            continue
        with named(stage.name):
            try:
                shape = shape_behind(stage.model, run)
            except ModelError:
                continue
            if shape is not None:
                refuse_shape(stage.strategy, shape.heads, shape.key_value_heads, shape.vocabulary, bool(shape.encoder_layers))


@contextmanager
def named(stage: str) -> Iterator[None]:
    """Put the stage's name before the message of an error."""
    try:
        yield
    except PenstockError as error:
        raise type(error)(f"{stage}: {error}") from error


def check_rewards(rewards: tuple[RewardSpec, ...], base: Path) -> None:
    """Find the functions of a mixture; reward models and reward processes are stood in for."""

    def heavy(sample: Any, columns: Any, **options: Any) -> float:
        return 0.0

    schemes = ("math", "judge", "clip")
    stood_in = [reward for reward in rewards if reward.function.partition(":")[0] in schemes or models_behind(reward)]
    Mixture(rewards, {reward.function: heavy for reward in stood_in}, base)


def check_data(data: DataSpec, kind: str, base: Path) -> None:
    """Find a source; read a file whole and render its first row. A hub's data waits for its stage.

    ``kind`` is what the rows become: prompts, examples or pairs.
    """
    renderer = Renderer(data)
    if is_function(data.source):
        resolve(data.source, base)
    elif not data.source.startswith("hub:"):
        source = open_source(data, base)
        make = {"prompts": renderer.prompt, "examples": renderer.example, "pairs": renderer.pair}[kind]
        make(PromptKey(source.name, 0, 0), source[0], 0)


def check_model(path: str) -> None:
    """Find a model folder; ``@stage`` was checked with the run, and a hub's name waits for its stage."""
    folder = Path(path).expanduser()
    if path.startswith((".", "/", "~")) and not folder.is_dir():
        raise ModelError(f"{folder.absolute()}: no such folder")
    elsewhere = not path or path.startswith("@") or not folder.is_dir()
    if elsewhere or pipeline_of(folder) or (folder / "config.json").is_file():
        return
    if (folder / "run.json").is_file():
        raise ModelError(f"{folder}: this is the folder of a run; its model is {folder / 'model'}")
    raise ModelError(f"{folder}: no config.json; this is not a model folder in Hugging Face format")
