"""``penstock recipes``: what there is to start from."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

from penstock.cli.recipe import built_in, wants_help
from penstock.core.errors import SpecError


def run(words: Sequence[str]) -> int:
    """List the built-in recipes, a line each."""
    if wants_help(words):
        print("usage: penstock recipes\n\nLists the built-in recipes; penstock train RECIPE --help tells more of one.")
        return 0
    if words:
        raise SpecError(f'recipes takes nothing more, got "{words[0]}"; penstock train {words[0]} --help tells of one recipe')
    for name, recipe in built_in().items():
        print(f"{name:<18}{(inspect.getdoc(recipe) or '').splitlines()[0]}")
    print("\npenstock train RECIPE runs one, with --help it lists its flags; your own is FILE.py:FUNCTION")
    return 0
