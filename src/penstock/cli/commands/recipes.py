"""``penstock recipes``: what there is to start from."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

from penstock.cli.recipe import built_in


def run(words: Sequence[str]) -> int:
    """List the built-in recipes, a line each."""
    for name, recipe in built_in().items():
        print(f"{name:<18}{(inspect.getdoc(recipe) or '').splitlines()[0]}")
    return 0
