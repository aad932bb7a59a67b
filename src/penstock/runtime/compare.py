"""A recorded online stage, trained again in one process: every step against the run's log, the weights against its model."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast

from penstock.config.run import Online, Run
from penstock.core.errors import ReplayError, SpecError
from penstock.core.events import read_events
from penstock.runtime.folder import RunFolder

COMPARED = ("loss", "gradient_norm", "reward/mean")
LINES = 20
"""Lines printed of a whole replay, besides the last."""


def compare(run: Path, name: str = "", steps: int = 0) -> int:
    """Replay a stage of a run and print how it compares; gives how many steps differ.

    Args:
        run: the run's folder, in which nothing is changed.
        name: of an online stage; empty: the last one.
        steps: to replay; 0: all that were recorded.

    Raises:
        SpecError: there is nothing to replay.
        ReplayError: all steps are equal, and the weights are not.
    """
    folder = RunFolder(run)
    made = folder.read()
    if not made.roles.engine.repeats:
        raise SpecError(
            f"{folder.path}: {type(made.roles.engine).__name__} generated; only the embedded engine repeats its steps"
        )
    stage = pick(made, name)
    logged = recorded(folder, stage.name)
    steps = steps or max(logged, default=0)
    if not 0 < steps <= max(logged, default=0):
        raise SpecError(f"{folder.path}: stage {stage.name} recorded {max(logged, default=0)} steps; replay 1 to as many")
    with tempfile.TemporaryDirectory() as place:
        different, weights = asyncio.run(carry_out(folder, made, stage, steps, logged, Path(place)))
    if different:
        print(f"{different} of {steps} steps differ")
    else:
        print(f"{steps} steps replayed: {', '.join(COMPARED)} are equal in each{weights}")
    return different


def pick(made: Run, name: str) -> Online:
    """The stage to replay."""
    online = [cast(Online, stage) for stage in made.stages if stage.uses_stream]
    chosen = [stage for stage in online if stage.name == name] if name else online[-1:]
    if not chosen:
        known = ", ".join(stage.name for stage in online) or "none"
        raise SpecError(f"no online stage{f' {name!r}' if name else ''} to replay; there are: {known}")
    return chosen[0]


def recorded(folder: RunFolder, stage: str) -> dict[int, Mapping[str, Any]]:
    """The metrics of a stage's steps; of a step that was trained again after a death, the latest."""
    events = (event for event in read_events(folder.events) if event["kind"] == "metrics" and event["stage"] == stage)
    return {int(event["step"]): event["values"] for event in events if "loss" in event["values"]}


async def carry_out(
    folder: RunFolder, made: Run, stage: Online, steps: int, logged: Mapping[int, Mapping[str, Any]], place: Path
) -> tuple[int, str]:
    """How many steps differ, and what is to be said of the weights."""
    from penstock.models.files import save_model
    from penstock.runtime.build import Models
    from penstock.runtime.context import in_one_process
    from penstock.runtime.local import alongside
    from penstock.runtime.replay import Replay, threads_recorded
    from penstock.runtime.stages.online import online_parts
    from penstock.train.device import set_up

    schedule = folder.schedule / stage.name
    device = set_up(made.device, threads_recorded(schedule))
    models = Models(lambda name: folder.stage_model(made, name), device, made.seed)
    parts = online_parts(stage, in_one_process(made), models, Path.cwd())
    save_model(parts.model, place)
    different = 0
    try:
        handed = place if made.runtime != "local" else None
        again = Replay(parts, schedule, handed, steps, made.roles.references > 0)
        async with alongside(*again.engines()), aclosing(again.steps()) as trained:
            async for step in trained:
                number = step.index + 1
                theirs = logged.get(number, {})
                unlike = [name for name in COMPARED if step.metrics.get(name) != theirs.get(name)]
                different += bool(unlike)
                if unlike and different == 1:
                    unequal = ", ".join(f"{name} {step.metrics.get(name)} and not {theirs.get(name)}" for name in unlike)
                    print(f"step {number} differs first: {unequal}")
                if number % max(1, steps // LINES) == 0:
                    values = "  ".join(f"{name} {step.metrics.get(name, float('nan')):.6g}" for name in COMPARED)
                    print(f"{stage.name} {number}/{steps}  {values}", flush=True)
    finally:
        await parts.rewards.close()
    whole = steps == stage.steps and not different
    return different, compare_weights(parts.model, folder.stage_model(made, stage.name)) if whole else ""


def compare_weights(model: Any, saved: Path) -> str:
    """What is to be said of the weights. Raises ReplayError where they differ from the run's."""
    from penstock.models.files import load_model

    if not saved.is_dir():
        return ""
    theirs = dict(load_model(str(saved)).policy_weights())
    for name, tensor in model.plain_weights():
        if not bool((tensor.detach().cpu() == theirs[name].cpu()).all()):
            raise ReplayError(f'all steps are equal, but weight "{name}" is not that of {saved}')
    return f", and so are the weights of {saved}"
