"""``penstock recipes``, ``penstock explain RECIPE`` and ``penstock check RECIPE``: what there is, and what it would do here."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path

from penstock.cli.command import Command
from penstock.cli.recipe import Placeable, built_in
from penstock.core.errors import SpecError


@dataclass(kw_only=True)
class Recipes(Command):
    """List the built-in recipes.

    penstock train RECIPE --help tells more of one.
    """

    def run(self) -> None:
        """Print a line for each."""
        for name, recipe in built_in().items():
            print(f"{name:<18}{(inspect.getdoc(recipe) or '').splitlines()[0]}")
        print("\npenstock train RECIPE runs one, with --help it lists its flags; your own is FILE.py:FUNCTION")


@dataclass(kw_only=True)
class Explain(Placeable):
    """Show what a recipe would do here: derived sizes, memory, placement.

    The recipe's parameters and every field of its run are flags too (penstock train RECIPE --help).
    """

    measure: float = 0.0
    """Seconds for which each way of stepping the environments of a Control stage is tried; 0: nothing runs."""

    def run(self) -> None:
        """Print the explanation."""
        from penstock.cli.explanation import explain

        made = self.made()
        if self.measure < 0:
            raise SpecError(f"--measure {self.measure:g} is negative; give seconds, such as 2")
        print("\n".join(explain(made)), flush=True)
        if self.measure:
            from penstock.control.measuring import acting_lines

            found = acting_lines(made, Path.cwd(), self.measure)
            print("\n".join(found) if found else "\n--measure: no stage steps environments (a Control stage does)")


@dataclass(kw_only=True)
class Check(Placeable):
    """Show rows of each stage token by token, as template, tokenizer, reward and loss see them.

    One step of every stage on a few rows, in this process; nothing is kept. Exit code 1 where something should be mended.
    """

    rows: int = 3
    """Rows or prompts of each stage."""

    def run(self) -> int:
        """Print what was seen; gives 1 where there is a remark."""
        run = self.made()
        if self.rows < 1:
            raise SpecError(f"--rows {self.rows}: look at least at 1")
        from penstock.runtime.preflight import preflight
        from penstock.ui.preflight import show

        return 1 if show(preflight(run, Path.cwd(), self.rows)) else 0
