"""``penstock train RECIPE [--field value …]`` and ``penstock train --resume RUN``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from penstock.cli.recipe import build, take, with_name
from penstock.core.errors import SpecError
from penstock.core.run import Run

HELP = """usage: penstock train RECIPE [--field value …]
       penstock train [RECIPE --field value …] --resume RUN

RECIPE is a built-in name (penstock recipes) or FILE.py:FUNCTION.
  --name NAME        name of the run: its folder is runs/NAME (default: the recipe's name and a number)
  --runs FOLDER      where run folders go (default: runs)
  --resume RUN       go on with the run in this folder
  --STAGE.field …    any field of a stage, for example --grpo.learner.learning_rate 1e-4
penstock train RECIPE --help lists the recipe's own fields."""


def run(words: Sequence[str]) -> int:
    """Train; gives the exit code."""
    words, own = take(words, name="", runs="runs", resume="")
    if not words and not own["resume"]:
        print(HELP)
        return 2
    if words and words[0] in ("-h", "--help"):
        print(HELP)
        return 0
    recipe, flags = (words[0], words[1:]) if words and not words[0].startswith("--") else ("", words)
    if own["resume"]:
        return resume(Path(own["resume"]), recipe, flags)
    if not recipe:
        raise SpecError(f'name a recipe before "{flags[0]}"; penstock recipes lists them')
    made = build(recipe, flags)
    folder = free_folder(Path(own["runs"]), own["name"] or made.name, exact=bool(own["name"]))
    return carry_out(with_name(made, folder), folder, resuming=False)


def resume(folder: Path, recipe: str, flags: Sequence[str]) -> int:
    """Go on with a run; a recipe and flags given again must make the same spec."""
    from penstock.cli.folder import RunFolder

    target = RunFolder(folder)
    made = with_name(build(recipe, flags), folder) if recipe else target.read()
    if flags and not recipe:
        raise SpecError(f'"{flags[0]}" would change the run; --resume goes on with the spec in {target.spec}')
    return carry_out(made, folder, resuming=True)


def free_folder(runs: Path, name: str, exact: bool) -> Path:
    """``runs/name``, numbered on where that is taken and the name was not chosen by the user."""
    folder, number = runs / name, 1
    while not exact and folder.exists():
        number += 1
        folder = runs / f"{name}-{number}"
    return folder


def carry_out(made: Run, folder: Path, resuming: bool) -> int:
    """Execute with live progress, write the report, close with the headline."""
    from penstock.ui.progress import Progress

    progress = Progress([(stage.name, stage.steps) for stage in made.stages])
    from penstock.cli.session import Interrupted, Session

    try:
        summary = Session(made, folder, listeners=[progress]).execute(resume=resuming)
    except Interrupted as stopped:
        progress.close()
        print(f"penstock: {stopped}; go on with: penstock train --resume {folder}", file=sys.stderr)
        return 130
    finally:
        progress.close()
    from penstock.ui.report import write_report

    page = write_report(folder)
    print(f"model {folder / 'model'}, report {page}")
    print(summary["headline"])
    return 0
