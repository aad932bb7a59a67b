"""What a command answers, and where the tests' recipes are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

RECIPES = Path(__file__).with_name("tiny_recipes.py")


class Outcome(NamedTuple):
    """What a command answered."""

    code: int
    out: str
    err: str

    def assert_refused(self, *parts: str) -> None:
        """One clear line on standard error, exit code 2, every one of ``parts`` in the line."""
        assert self.code == 2
        assert self.err.startswith("penstock: error: ")
        assert self.err.count("\n") == 1, self.err
        for part in parts:
            assert part in self.err


def contents(folder: Path) -> dict[str, bytes]:
    """The files of a folder by their places in it."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


Penstock = Callable[..., Outcome]
