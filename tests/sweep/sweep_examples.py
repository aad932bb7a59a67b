"""A sweep over recipes that never train, runs that are finished without having run, and the command as a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.cli.recipe import build
from penstock.config.run import Run
from penstock.config.spec import plain
from penstock.core.events import EventLog
from penstock.core.files import write_json
from penstock.runtime.folder import RunFolder
from penstock.sweep.dimensions import Dimension
from penstock.sweep.plan import Plan, Sweep, first_of

RECIPES = Path(__file__).parents[1] / "cli" / "tiny_recipes.py"
RATE = Dimension(name="grpo.learner.learning_rate", low=1e-5, high=1e-2)
BATCH = Dimension(name="grpo.batch", low=2, high=32, whole=True)


def sweep_of(path: Path, *dimensions: Dimension, steps: int = 18, **settings: Any) -> Sweep:
    """A sweep of the recipe ``tiny`` in a folder."""
    plan = Plan(dimensions=dimensions or (RATE, BATCH), **settings)

    def built(words: Sequence[str]) -> Run:
        return build(f"{RECIPES}:tiny", [f"--steps={steps}", *words])

    path.mkdir(exist_ok=True)
    return Sweep(plan, path, built, first_of(plan, built), say=lambda line: None, changed=lambda: None)


def log_values(folder: Path, values: Mapping[int, float], metric: str = "evaluation/reward") -> None:
    """What a run's log says of its last stage."""
    log = EventLog(folder / "events.jsonl")
    log.stage = "grpo"
    for step, value in values.items():
        log.metrics(step, {metric: value})
    log.close()


def finish(folder: Path, run: Run, values: Mapping[int, float], metric: str = "evaluation/reward") -> None:
    """Make a folder that of a finished run with a hand-made curve."""
    if not (folder / "run.json").exists():
        RunFolder(folder).begin(run).close()
    log_values(folder, values, metric)
    for stage in run.stages:
        RunFolder(folder).stage_model(run, stage.name).mkdir(parents=True)
    write_json(folder / "summary.json", {"headline": "done", "stages": {stage.name: {} for stage in run.stages}})


def penstock(folder: Path, *words: str, wait: bool = True) -> Any:
    """The command in a process of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    command = [sys.executable, "-m", "penstock.cli.main", *words]
    if wait:
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=500)
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def results(path: Path) -> dict[str, Any]:
    """What a sweep has written."""
    found: dict[str, Any] = json.loads((path / "results.json").read_text(encoding="utf-8"))
    return found


def spec_of(run: Run) -> Any:
    """A run in plain values, as its file has it."""
    return json.loads(json.dumps(plain(run)))
