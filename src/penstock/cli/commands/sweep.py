"""``penstock sweep RECIPE --FIELD LOW..HIGH --FIELD a,b [--field value …]`` and ``penstock sweep --resume FOLDER``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from penstock.cli.command import called
from penstock.cli.recipe import Placeable
from penstock.core.errors import SpecError

if TYPE_CHECKING:
    from penstock.config.run import Run

SHOWING = 30.0
"""Seconds at least between two reports while the sweep goes."""
ASKED = ("recipe", "flags", "generator", "placement")  # what makes a sweep's runs


@dataclass(kw_only=True)
class Sweep(Placeable):
    """Search a run's settings: penstock sweep RECIPE --FIELD LOW..HIGH --FIELD a,b [--field value …].

    Any field that penstock train takes is searched where its value is a range or several choices:
      --grpo.learner.learning_rate 1e-6..1e-4   a range: logarithmic if its ends are a factor of ten apart; integers stay so
      --grpo.batch 16,32,64                     choices

    A trial is one run, or --seeds of them, in processes of their own; each is a run folder as any other (docs/sweeps.md).

    Ctrl-C once saves every run, twice stops at once. Either way, and after a kill, --resume goes on.
    """

    NEEDS: ClassVar[Sequence[str]] = ("sweep", "optuna")

    trials: int = 24
    """Trials in all."""
    seeds: int = 1
    """Runs of a trial; the median of their objectives counts."""
    parallel: int = 1
    """Runs at once, each in a process of its own."""
    threads: int = 0
    """CPU threads of a process (0: all cores, shared among the runs at once)."""
    objective: Annotated[str, called("NAME")] = "evaluation/reward"
    """The metric of the last stage that counts, as it is at the end (default: evaluation/reward)."""
    direction: Literal["maximize", "minimize"] = "maximize"
    sampler: Literal["tpe", "random", "grid"] = "tpe"
    """What chooses values: Optuna's TPE, chance, or all combinations of choices."""
    stop: Literal["asha", "none"] = "none"
    """asha: end trials early that are not among the best third at a ninth and at a third of their steps."""
    population: int = 0
    """Train so many members at once instead of a search; the worst copy weights and values of the best."""
    slices: int = 4
    """Parts of the last stage, with copies after each (with --population)."""
    out: Annotated[Path | None, called("FOLDER")] = None
    """Where the sweep goes (default: runs/sweeps/RECIPE, numbered if it is taken)."""
    resume: Annotated[Path | None, called("FOLDER")] = None
    """Go on with the sweep in this folder."""

    def run(self) -> None:
        """Begin the sweep, or go on with one."""
        from penstock.runtime.folder import free_folder
        from penstock.sweep import dimensions, plan

        if self.resume and (self.recipe or self.flags):
            raise SpecError("--resume goes on with the sweep as it was begun; leave the recipe and its flags out")
        if self.resume:
            vars(self).update(plan.read(self.resume)[0])
            return self.go_on(self.resume)
        self.flags, swept = dimensions.split(self.flags)
        own = {one.name: getattr(self, one.name) for one in fields(plan.Plan) if one.name != "dimensions"}
        made = plan.Plan(dimensions=swept, **own)
        path = self.out or free_folder(Path("runs/sweeps"), Path(self.recipe.rpartition(":")[2]).stem, exact=False)
        plan.begin(path, {name: getattr(self, name) for name in ASKED}, made, plan.first_of(made, self.built))
        return self.go_on(path)

    def built(self, words: Sequence[str]) -> Run:
        """The run with so many flags more. Raises SpecError."""
        asked = replace(self)
        asked.flags = [*self.flags, *words]
        return asked.made()

    def go_on(self, path: Path) -> None:
        """Run what is left, with a report that follows."""
        from penstock.sweep.carrying import carry_out
        from penstock.ui.sweep_report import best_line, write_sweep_report

        shown = time.monotonic()

        def show() -> None:
            nonlocal shown
            if time.monotonic() - shown > SHOWING:
                write_sweep_report(path)
                shown = time.monotonic()

        try:
            carry_out(path, self.built, say=lambda line: print(line, flush=True), changed=show)
        finally:
            if (path / "results.json").exists():
                print(f"{best_line(path)}\nreport {write_sweep_report(path)}")
