"""The ``penstock`` command. This module imports nothing heavy, so that help answers at once."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence

from penstock.core.errors import PenstockError

COMMANDS = {
    "train": "run a recipe, or go on with a run: penstock train RECIPE [--field value …] | --resume RUN",
    "eval": "measure a model on a recipe's held-out prompts: penstock eval RUN | RECIPE --model FOLDER",
    "generate": "let a model answer: penstock generate MODEL --prompt TEXT",
    "serve": "put a model behind an OpenAI-compatible API: penstock serve MODEL [--token-file FILE]",
    "feedback": "let people judge, and keep what they say: penstock feedback serve STORE",
    "report": "write RUN/report.html: curves and samples of a run",
    "ui": "show all runs of a folder as a live page: penstock ui [RUNS] [--store STORE]",
    "timeline": "show where a run's time went, and write a trace: penstock timeline RUN [--out FILE]",
    "replay": "train a recorded stage again, step by step, in one process: penstock replay RUN",
    "explain": "show what a recipe would do here: derived sizes, memory, placement",
    "recipes": "list the built-in recipes",
}

USAGE = (
    "usage: penstock COMMAND [options]\n\nReinforcement learning from human and verifiable feedback on language models.\n\n"
    "commands:\n"
    + "\n".join(f"  {name:<10}{text}" for name, text in COMMANDS.items())
    + "\n\npenstock COMMAND --help tells more, penstock --version the version. Start with: penstock train quickstart"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; gives the exit code: 0 done, 2 wrong input, 130 stopped by Ctrl-C."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    return guarded(lambda: run(words))


def guarded(command: Callable[[], int]) -> int:
    """Run something for the command line: what went wrong becomes one line and an exit code."""
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
        return refuse(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except KeyboardInterrupt:
        print("penstock: stopped", file=sys.stderr)
        return 130


def run(words: Sequence[str]) -> int:
    """Run one command and let its errors through."""
    if not words or words[0] in ("-h", "--help", "help"):
        print(USAGE)
        return 0
    if words[0] in ("--version", "-V"):
        from importlib.metadata import version

        print(f"penstock {version('penstock')}")
        return 0
    if words[0] not in COMMANDS:
        from penstock.config.spec import suggestion

        return refuse(f'unknown command "{words[0]}"{suggestion(words[0], COMMANDS)}')
    command = importlib.import_module(f"penstock.cli.commands.{words[0]}")
    return int(command.run(words[1:]) or 0)


def refuse(message: str) -> int:
    """One line on standard error; exit code 2."""
    print(f"penstock: error: {' '.join(message.split())}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
