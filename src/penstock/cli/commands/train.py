"""``penstock train RECIPE [--field value …]`` and ``penstock train --resume RUN``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from penstock.cli.command import HELP, called
from penstock.cli.recipe import Placeable, is_named, show_help, with_name
from penstock.core.errors import PenstockError, RanksLost, SpecError

if TYPE_CHECKING:
    from penstock.config.run import Run
    from penstock.runtime.around import Processes


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
    resume: Annotated[Path | None, called("RUN")] = None
    """Go on with the run in this folder; a recipe and flags given again must make the same run."""
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
            return self.go_on(self.resume)
        if not self.recipe:
            before = f' before "{self.flags[0]}"' if self.flags else ""
            raise SpecError(f"name a recipe{before}: penstock train quickstart (penstock recipes lists them)")
        made = self.made()
        if self.debug:
            from penstock.runtime.around import alone

            made = alone(made)
        folder = free_folder(self.runs, self.name or made.name, exact=bool(self.name))
        return carry_out(with_name(made, folder), folder, resuming=False)

    def go_on(self, folder: Path) -> int:
        """Resume a run; a recipe and flags given again must make the same spec."""
        from penstock.runtime.folder import RunFolder
        from penstock.runtime.pinning import pinned

        target = RunFolder(folder)
        changes = [*self.flags, *(f"--{name}" for name in ("placement", "generator") if getattr(self, name))]
        if changes and not self.recipe:
            raise SpecError(f'"{changes[0]}" would change the run; --resume goes on with the spec in {target.spec}')
        kept = target.read()
        made = pinned(with_name(self.made(), folder), Path.cwd(), kept) if self.recipe else kept
        target.require_same(made)
        done = target.finished(made)
        if done is None:
            return carry_out(made, folder, resuming=True)
        print(f"{folder}: this run is finished; its model is {target.model}. Nothing was changed.")
        print(done["headline"])
        return 0


def free_folder(runs: Path, name: str, exact: bool) -> Path:
    """``runs/name``, numbered on where that is taken and the name was not chosen by the user."""
    folder, number = runs / name, 1
    while not exact and folder.exists():
        number += 1
        folder = runs / f"{name}-{number}"
    return folder


def carry_out(made: Run, folder: Path, resuming: bool, progress: bool = True, processes: Processes | None = None) -> int:
    """Execute with live progress, write the report, close with the headline.

    A run of processes is carried out by a supervisor, whose learner comes here again with its ``processes``.
    """
    from penstock.runtime.pinning import pinned

    if not resuming:
        made = pinned(made, Path.cwd())
    if made.runtime != "local" and processes is None:
        from penstock.runtime.supervise import supervise

        return supervise(made, folder, resuming, progress)
    from penstock.runtime.session import Interrupted
    from penstock.ui.report import write_report

    try:
        summary = execute(made, folder, resuming, progress, processes)
    except Interrupted as stopped:
        return stop(f"{stopped}; go on with: penstock train --resume {folder}")
    except KeyboardInterrupt:
        kept = (folder / "run.json").exists()
        return stop(f"stopped; {f'go on with: penstock train --resume {folder}' if kept else 'nothing was begun'}")
    page = write_report(folder)
    print(f"model {folder / 'model'}, report {page}")
    print(summary["headline"])
    return 0


def execute(
    made: Run, folder: Path, resuming: bool, progress: bool = True, processes: Processes | None = None
) -> dict[str, Any]:
    """Carry a run out, shown live if wanted; gives its summary. Errors of a run that has begun say how to go on."""
    from penstock.runtime.folder import RunFolder
    from penstock.runtime.pinning import pinned
    from penstock.runtime.session import Session
    from penstock.ui.progress import Progress

    made = pinned(made, Path.cwd(), RunFolder(folder).read() if resuming else None)
    shown = Progress([(stage.name, stage.steps) for stage in made.stages]) if progress else None
    session = Session(made, folder, listeners=[shown] if shown else [], processes=processes)
    try:
        return session.execute(resume=resuming)
    except PenstockError as error:
        if not session.begun or (processes is not None and isinstance(error, RanksLost)):  # the supervisor starts it again
            raise
        raise type(error)(f"{error}; mend that and go on with: penstock train --resume {folder}") from error
    finally:
        if shown:
            shown.close()


def stop(message: str) -> int:
    print(f"penstock: {message}", file=sys.stderr)
    return 130
