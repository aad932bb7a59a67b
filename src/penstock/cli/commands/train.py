"""``penstock train RECIPE [--field value …]`` and ``penstock train --resume RUN``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

from penstock.cli.command import HELP, called
from penstock.cli.recipe import Placeable, is_named, show_help
from penstock.core.errors import SpecError

if TYPE_CHECKING:
    from penstock.config.run import Run
    from penstock.core.events import Event


@dataclass(kw_only=True)
class Train(Placeable):
    """Run a recipe, or go on with a run: penstock train RECIPE [--field value …], or penstock train --resume RUN.

    The recipe's parameters and every field of its run are flags too; penstock train RECIPE --help lists them:
      --STAGE.field …    any field of a stage, for example --grpo.learner.learning_rate 1e-4
      --runtime procs    learner, generators and reward workers as processes of this machine (default: local, one process);
                         --roles.generators 2, --roles.channel disk … say which, --STAGE.max_lag how far generation runs ahead
      --runtime ray      the same as actors of a Ray cluster: the one that RAY_ADDRESS names, or one of its own here

    Ctrl-C (or SIGTERM) once finishes the step and saves; twice stops at once. Either way --resume goes on.
    """

    name: Annotated[str, called("NAME")] = ""
    """Name of the run: its folder is runs/NAME (default: the recipe's name, numbered if it is taken)."""
    runs: Annotated[Path, called("FOLDER")] = Path("runs")
    """Where run folders go (default: runs)."""
    resume: Annotated[str, called("RUN")] = ""
    """Go on with the run in this folder, or under this URL of an object store (s3://BUCKET/PREFIX/NAME), which is brought to
    runs/NAME; a recipe and flags given again must make the same run."""
    or_resume: bool = False
    """Begin the run of this --name, or go on with it where it has begun: for clusters, which start a command again."""
    take_over: bool = False
    """With --resume or --or-resume: take the run away from the process that is training in it, on whatever machine; it ends
    before it writes again. Without, a run in which a process still trains is refused; one whose process is gone is free."""
    debug: bool = False
    """Everything in this process, whatever --runtime says, so that a breakpoint anywhere works."""

    @classmethod
    def read(cls, words: Sequence[str], program: str) -> Self | None:
        """With a recipe, help is about that recipe."""
        if is_named(words) and set(HELP) & set(words):
            show_help(words[0], program)
            return None
        return super().read(words, program)

    def run(self) -> int:
        """Train; gives the exit code."""
        if self.resume:
            if self.debug:
                raise SpecError("--debug begins a run of its own, in one process; leave --resume out")
            return self.go_on(self.brought(self.resume) if "://" in self.resume else Path(self.resume))
        if self.take_over and not (self.resume or self.or_resume):
            raise SpecError("--take-over is for a run that has begun; add --resume RUN, or --or-resume and --name NAME")
        if self.or_resume and not self.name:
            raise SpecError("--or-resume goes on with the run of a name; add --name NAME")
        if self.or_resume and (self.runs / self.name / "run.json").exists():
            return self.go_on(self.runs / self.name)
        made = self.made()
        if self.or_resume and made.checkpoint.store:
            from penstock.ckpt.fetch import has_run

            if has_run(url := f"{made.checkpoint.store.rstrip('/')}/{self.name}"):
                return self.go_on(self.brought(url))
        if self.debug:
            from penstock.runtime.context import in_one_process

            made = in_one_process(made)
        from penstock.runtime.folder import free_folder

        folder = free_folder(self.runs, self.name or made.name, exact=bool(self.name))
        return carry_out(replace(made, name=folder.name), folder, resuming=False)

    def brought(self, url: str) -> Path:
        """The folder of a run that was brought from an object store."""
        from penstock.ckpt.fetch import fetch_run

        def heard(event: Event) -> None:
            said = {name: value for name, value in event.items() if name not in ("kind", "time", "stage", "step", "what")}
            print(f"penstock: {event['what']}: {', '.join(f'{name} {value}' for name, value in said.items())}", file=sys.stderr)

        folder = self.runs / url.rstrip("/").rpartition("/")[2]
        fetch_run(url, folder, [heard])
        return folder

    def go_on(self, folder: Path) -> int:
        """Resume a run; a recipe and flags given again must make the same spec."""
        from penstock.runtime.folder import RunFolder
        from penstock.runtime.pinning import pinned

        target = RunFolder(folder)
        changes = [*self.flags, *(f"--{name}" for name in ("placement", "generator") if getattr(self, name))]
        if changes and not self.recipe:
            raise SpecError(f'"{changes[0]}" would change the run; --resume goes on with the spec in {target.spec}')
        kept = target.read()
        made = pinned(replace(self.made(), name=folder.name), Path.cwd(), kept) if self.recipe else kept
        target.require_same(made)
        done = target.finished(made)
        if done is None or made.checkpoint.store:  # whose end may not be in the store yet
            return carry_out(made, folder, resuming=True, take_over=self.take_over)
        print(f"{folder}: this run is finished; its model is {target.model}. Nothing was changed.")
        print(done["headline"])
        return 0


def carry_out(made: Run, folder: Path, resuming: bool, take_over: bool = False) -> int:
    """Launch with live progress, write the report, close with the headline."""
    from penstock.runtime import launch
    from penstock.ui.progress import following
    from penstock.ui.report import write_report

    with following(made) as listeners:
        result = launch(made, folder, listeners, resume=resuming, take_over=take_over)
    print(f"model {result.model_path}, report {write_report(folder)}")
    print(result.headline)
    return 0
