"""``penstock explain RECIPE``: derived sizes, memory and what runs where, before anything heavy starts."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.cli.recipe import Placeable
from penstock.core.errors import SpecError


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
