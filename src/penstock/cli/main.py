"""The ``penstock`` command. This module imports nothing heavy, so that help answers at once."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from penstock.core.errors import PenstockError
from penstock.core.files import FULL, cause

ABOUT = """Reinforcement learning from human and verifiable feedback on language models.

penstock COMMAND --help tells more, penstock --version the version. Start with: penstock train quickstart"""

COMMANDS = {
    "train": "train:Train",
    "sweep": "sweep:Sweep",
    "eval": "eval:Eval",
    "generate": "generate:Generate",
    "serve": "serve:Serve",
    "feedback": "feedback:FEEDBACK",
    "report": "runs:Report",
    "ui": "ui:Ui",
    "timeline": "runs:Timeline",
    "replay": "runs:Replay",
    "compare": "runs:Compare",
    "deploy": "deploy:Deploy",
    "monitors": "monitors:MONITORS",
    "check": "recipes:Check",
    "explain": "recipes:Explain",
    "recipes": "recipes:Recipes",
}
"""The module and class of each command."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; gives the exit code: 0 done, 2 wrong input, 130 stopped by Ctrl-C."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    return guarded(lambda: run(words), alone=arguments is None)


def guarded(command: Callable[[], int], alone: bool = False) -> int:
    """Run something for the command line: what went wrong becomes one line and an exit code (``alone``: of the process)."""
    try:
        code = command()
        sys.stdout.flush()  # a reader who left is noticed here rather than at exit
        return code
    except PenstockError as error:
        return refuse(str(error))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        full = cause(error, Path(error.filename or ".").absolute().parent) if error.errno in FULL else ""
        return refuse(full or (f"{error.filename}: {error.strerror}" if error.filename else str(error)))
    except KeyboardInterrupt as stopped:
        if alone:  # Python would show what a signal left half made, such as an event loop without its fields
            sys.unraisablehook = lambda _: None
            warnings.simplefilter("ignore")
        print(f"penstock: {stopped}" if stopped.args else "penstock: stopped", file=sys.stderr)
        return 130


def run(words: Sequence[str]) -> int:
    """Run one command and let its errors through."""
    if words and words[0] in ("--version", "-V"):
        from importlib.metadata import version

        print(f"penstock {version('penstock')}")
        return 0
    from penstock.cli.command import Group

    return Group(ABOUT, COMMANDS).start(words, "penstock")


def refuse(message: str) -> int:
    """One line on standard error; exit code 2."""
    print(f"penstock: error: {' '.join(message.split())}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
