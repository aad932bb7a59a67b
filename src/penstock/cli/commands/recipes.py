"""``penstock recipes`` and ``penstock explain RECIPE``: what there is to start from, and what it would do here."""

from __future__ import annotations

import inspect
from dataclasses import dataclass

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

    def run(self) -> None:
        """Print the explanation."""
        if not self.recipe:
            raise SpecError("explain takes a recipe: penstock explain quickstart (penstock recipes lists them)")
        from penstock.cli.explanation import explain

        print("\n".join(explain(self.made())))
