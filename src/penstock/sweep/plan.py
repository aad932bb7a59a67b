"""What a sweep is, and its folder: ``sweep.json``, ``trials.db`` or ``slices.jsonl``, ``results.json`` and its runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from penstock.config.run import Run
from penstock.config.spec import difference, parse, plain, require
from penstock.core.errors import CheckpointError, SpecError
from penstock.core.files import write_json
from penstock.runtime.pinning import pinned
from penstock.sweep.dimensions import Dimension, Values, words_of

Build = Callable[[Sequence[str]], Run]
"""The run of a sweep's recipe with so many flags more."""
MOST_RUNS = 10_000
LEAST_MEMBERS = 3


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to vary, how much, and what counts. ``penstock sweep --help`` says what each means."""

    dimensions: tuple[Dimension, ...]
    trials: int = 24
    seeds: int = 1
    parallel: int = 1
    threads: int = 0
    objective: str = "evaluation/reward"
    direction: Literal["maximize", "minimize"] = "maximize"
    sampler: Literal["tpe", "random", "grid"] = "tpe"
    stop: Literal["asha", "none"] = "none"
    population: int = 0
    slices: int = 4

    def __post_init__(self) -> None:
        require(bool(self.dimensions), "nothing to sweep; give a field a range (--FIELD 1e-6..1e-4) or choices (--FIELD a,b)")
        for name in ("trials", "seeds", "parallel", "slices"):
            require(getattr(self, name) >= 1, f"--{name} {getattr(self, name)}: give 1 or more")
        require(self.threads >= 0, f"--threads {self.threads} is negative; 0 shares all cores among the processes")
        runs = self.population * self.slices or self.trials * self.seeds
        require(runs <= MOST_RUNS, f"{runs:,} runs are more than {MOST_RUNS:,}; sweep in several parts")
        require(
            self.sampler != "grid" or all(one.choices for one in self.dimensions),
            "--sampler grid has no grid for a range; write its points as choices, such as 1e-6,1e-5,1e-4",
        )
        whole = self.population >= LEAST_MEMBERS and self.slices > 1 and self.seeds == 1 and self.stop == "none"
        require(
            not self.population or whole,
            f"--population needs {LEAST_MEMBERS} members and 2 slices or more, of one run each; leave --seeds and --stop out",
        )

    @property
    def sign(self) -> float:
        """What makes larger objectives better."""
        return 1.0 if self.direction == "maximize" else -1.0


@dataclass(frozen=True)
class Sweep:
    """A sweep under way."""

    plan: Plan
    path: Path
    build: Build
    base: Run
    """The run with the first value of each dimension, its data pinned to what it was when the sweep began."""
    say: Callable[[str], None]
    changed: Callable[[], None]
    """Called when ``results.json`` was written."""

    @property
    def steps(self) -> int:
        """Steps of the last stage."""
        return self.base.stages[-1].steps

    def run_of(self, values: Values) -> Run:
        """The run with these values. Raises SpecError where there is none."""
        return pinned(self.build(words_of(values)), Path.cwd(), self.base)

    def write(
        self, trials: Sequence[Mapping[str, Any]], importance: Mapping[str, float], copies: Sequence[Mapping[str, Any]]
    ) -> None:
        """Replace ``results.json``: what came of the sweep so far, for the report and for other programs.

        A trial has ``number``, ``state``, ``values``, ``objective``, ``error`` and ``runs`` (folders); importance is in shares
        of 1; a copy in a population has ``slice``, ``member``, ``donor``, and the ``values`` from then on.
        """
        found = plain(self.plan) | {"dimensions": [asdict(one) | {"log": one.log} for one in self.plan.dimensions]}
        found |= {"stage": self.base.stages[-1].name, "steps": self.steps}
        write_json(self.path / "results.json", found | {"trials": trials, "importance": importance, "copies": copies})
        self.changed()


def begin(path: Path, asked: Mapping[str, Any], plan: Plan, base: Run) -> None:
    """Make a sweep's folder; ``asked`` is what was given on the command line. Raises CheckpointError."""
    if path.exists():
        raise CheckpointError(f"{path}: is there already; go on with penstock sweep --resume {path}, or choose another --out")
    try:
        path.mkdir(mode=0o700, parents=True)
        write_json(path / "sweep.json", {"asked": dict(asked), "plan": plain(plan), "run": plain(base)})
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be written ({error.strerror}); choose another --out") from error


def read(path: Path) -> tuple[dict[str, Any], Plan, dict[str, Any]]:
    """What was asked for, the plan, and the run that a sweep began with. Raises CheckpointError."""
    try:
        found = json.loads((path / "sweep.json").read_text(encoding="utf-8"))
        return found["asked"], parse(Plan, found["plan"]), found["run"]
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no sweep.json here; this is no sweep's folder") from None
    except (OSError, ValueError, LookupError, TypeError, SpecError) as error:
        raise CheckpointError(f"{path}/sweep.json: cannot be read: {error}") from error


def first_of(plan: Plan, build: Build) -> Run:
    """The run with the first value of every dimension, once the ends of each range and all choices were tried.

    Raises:
        SpecError: an unknown field, or a value that it cannot have; the last stage does not measure the objective.
    """
    first = {one.name: one.at(0.0) for one in plan.dimensions}
    run = build(words_of(first))
    for one in plan.dimensions:
        for value in one.choices or (one.at(1.0),):
            build(words_of(first | {one.name: value}))
    stage: Any = run.stages[-1]
    require(not run.checkpoint.store, "the runs of a sweep would share one place in checkpoint.store; leave it out")
    if plan.objective.startswith("evaluation/"):
        require(
            stage.evaluation is not None,
            f"--objective {plan.objective}: stage {stage.name} has no evaluation; name another metric of it, such as loss",
        )
        require(
            plan.stop == "none" or stage.evaluation.every > 0,
            f"--stop asha compares runs on their way; set --{stage.name}.evaluation.every {max(1, stage.steps // 9)}",
        )
    return pinned(run, Path.cwd())


def require_same(kept: Mapping[str, Any], run: Run, path: Path) -> Run:
    """The run that a sweep began with, pinned as it was. Raises CheckpointError where its recipe makes another one now."""
    before = parse(Run, kept)
    if lines := difference(plain(before), plain(pinned(run, Path.cwd(), before))):
        raise CheckpointError(f"{path}: the recipe has changed since the sweep began ({'; '.join(lines[:3])}); begin a new one")
    return before
