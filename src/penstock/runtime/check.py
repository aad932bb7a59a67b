"""What can be known of all stages before the first one starts: a typo in the last stage must not cost an hour."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.config.run import DataSpec, Online, RewardSpec, Run, models_behind
from penstock.config.stage import OTHER, SIGNALS, Stage
from penstock.config.strategies import OneDevice, refuse_shape
from penstock.core.errors import ModelError, PenstockError, SpecError, reworded
from penstock.core.types import PromptKey
from penstock.data.render import Renderer
from penstock.data.resolve import resolve
from penstock.data.sources import is_function, open_source
from penstock.models.presets import pipeline_of, require_drawing, require_model_folder, shape_behind
from penstock.rewards.runner import Mixture
from penstock.runtime.pinning import asked


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
        raise reworded(error, f"{stage}: {error}") from error


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
    require_model_folder(folder)


def require_more_than_signals(run: Run) -> None:
    """Refuse a run in which product signals are the only feedback of a stage and of all that comes of it.

    A policy that is rewarded by thumbs alone learns to please those who click. So people who were asked or answers that were
    checked must have a say too: in the same reward, in a stage that this one starts from or that goes on from it, or at least
    in the evaluation by which its weights are judged.

    Raises:
        SpecError: names the stage and the fix.
    """
    learned: dict[str, set[str]] = {}
    for stage in run.stages:
        learned[stage.name] = stage.feedback(learned) | learned.get(stage.model.path.removeprefix("@"), set())
    for stage in run.stages:
        own = stage.feedback(learned)
        if SIGNALS not in own:
            continue
        if stage.uses_stream and OTHER not in own:
            raise SpecError(
                f"{stage.name}: all its rewards were learned from product signals, and a policy learns to please its users"
                "; add a reward that was learned from votes, or that checks answers"
            )
        if stage.imitates:
            raise SpecError(f'{stage.name}: SFT would imitate what users disliked too; use KTO, or form="product_corrections"')
        if OTHER not in learned[stage.name] and not judged_by_others(stage) and not mended(stage, run, learned):
            raise SpecError(
                f"{stage.name}: product signals are all that it learns from; start from or go on with a stage that learns from "
                "votes or checked answers, or give it an evaluation on rows that people were asked about"
            )


def judged_by_others(stage: Stage) -> bool:
    """Whether held-out rows of another origin judge an offline stage's weights."""
    return stage.pinned and not stage.uses_stream and stage.evaluation is not None and not stage.evaluation.data.of_signals


def mended(stage: Stage, run: Run, learned: dict[str, set[str]]) -> bool:
    """Whether a later stage takes this one's model, as its start or as one of its rewards, and learns from others too."""
    heirs = {stage.name}
    for later in run.stages:
        taken = {later.model.path.removeprefix("@")}
        taken |= {name.removeprefix("@") for name in later.reward_models()}
        if taken & heirs and later.name not in heirs:
            heirs.add(later.name)
            if OTHER in later.feedback(learned):
                return True
    return False
