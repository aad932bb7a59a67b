"""``penstock recipes``: what there is to start from."""

from __future__ import annotations

import inspect
from dataclasses import dataclass

from penstock.cli.command import Command
from penstock.cli.recipe import built_in


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
