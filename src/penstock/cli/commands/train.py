"""``penstock train RECIPE [--field value …]`` and ``penstock train --resume RUN``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.cli.recipe import build, show_help, take, wants_help, with_name
from penstock.config.run import Run
from penstock.core.errors import PenstockError, RanksLost, SpecError
from penstock.runtime.pinning import pinned
from penstock.runtime.placing import placed

if TYPE_CHECKING:
    from penstock.runtime.around import Processes

HELP = """usage: penstock train RECIPE [--field value …]
       penstock train [RECIPE --field value …] --resume RUN

RECIPE is a built-in name (penstock recipes) or FILE.py:FUNCTION.
  --name NAME        name of the run: its folder is runs/NAME (default: the recipe's name, numbered if it is taken)
  --runs FOLDER      where run folders go (default: runs)
  --resume RUN       go on with the run in this folder
  --STAGE.field …    any field of a stage, for example --grpo.learner.learning_rate 1e-4
  --runtime procs    learner, generators and reward workers as processes of this machine (default: local, one process);
                     --roles.generators 2, --roles.channel disk … say which, --STAGE.max_lag how far generation may run ahead
  --runtime ray      the same as actors of a Ray cluster: the one that RAY_ADDRESS names, or one of its own on this machine;
                     --placement colocate, split (default) or FILE.toml says what lands where
  --debug            everything in this process, whatever --runtime says, so that a breakpoint anywhere works
  --generator vllm   draw with vLLM instead of Penstock's own engine (docs/backends.md); the generators become processes
penstock train RECIPE --help lists the recipe's own fields.

Ctrl-C (or SIGTERM) once finishes the step and saves; twice stops at once. Either way --resume goes on."""


def run(words: Sequence[str]) -> int:
    """Train; gives the exit code."""
    words, own = take(words, name="", runs="runs", resume="", placement="", debug=False)
    recipe, flags = (words[0], words[1:]) if words and not words[0].startswith("-") else ("", words)
    if wants_help(words):
        show_help(recipe) if recipe else print(HELP)
        return 0
    if own["resume"]:
        if own["debug"]:
            raise SpecError("--debug begins a run of its own, in one process; leave --resume out")
        return resume(Path(own["resume"]), recipe, flags, own["placement"])
    if not recipe:
        before = f' before "{flags[0]}"' if flags else ""
        raise SpecError(f"name a recipe{before}: penstock train quickstart (penstock recipes lists them)")
    made = placed(build(recipe, flags), own["placement"])
    if own["debug"]:
        from penstock.runtime.around import alone

        made = alone(made)
    folder = free_folder(Path(own["runs"]), own["name"] or made.name, exact=bool(own["name"]))
    return carry_out(with_name(made, folder), folder, resuming=False)


def resume(folder: Path, recipe: str, flags: Sequence[str], placement: str = "") -> int:
    """Go on with a run; a recipe and flags given again must make the same spec."""
    from penstock.runtime.folder import RunFolder

    target = RunFolder(folder)
    if (flags or placement) and not recipe:
        raise SpecError(
            f'"{flags[0] if flags else "--placement"}" would change the run; --resume goes on with the spec in {target.spec}'
        )
    kept = target.read()
    made = pinned(with_name(placed(build(recipe, flags), placement), folder), Path.cwd(), kept) if recipe else kept
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
