"""The help of every command and built-in recipe: defaults are said once, empty ones not at all; no lines run together."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from cli_examples import Penstock

from penstock.cli.command import Command, Group
from penstock.cli.main import ABOUT, COMMANDS
from penstock.cli.recipe import built_in, parameters


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal in which no line of help is folded."""
    monkeypatch.setenv("COLUMNS", "500")


def commands(group: Group, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """The words and the text of every command and group of commands."""
    yield words, group.about
    for name in group.commands:
        found = group.load(name)
        if isinstance(found, Group):
            yield from commands(found, (*words, name))
        else:
            yield (*words, name), inspect.getdoc(found) or ""


def faults(shown: str, text: str) -> list[str]:
    """Lines of help that name a default twice or an empty one, and indented lines of its text that do not stand alone in it."""
    lines = [line.strip() for line in shown.splitlines()]
    blocks = [line.strip() for line in text.partition("\nArgs:")[0].splitlines() if line.startswith(" ")]
    found = [line for line in lines if line.count("(default") > 1 or re.search(r"\(default: ?(None|''|\"\")?\)", line)]
    return found + [f"runs together: {line}" for line in blocks if line not in lines]


def test_no_commands_help_repeats_a_default_or_runs_lines_together(penstock: Penstock) -> None:
    every = list(commands(Group(ABOUT, COMMANDS)))
    assert len(every) > 30
    found = {" ".join(words): faults(penstock(*words, "--help").out, text) for words, text in every}
    assert {words: problems for words, problems in found.items() if problems} == {}


def test_no_recipes_help_repeats_a_default_or_runs_lines_together(penstock: Penstock) -> None:
    every = built_in()
    assert len(every) > 10
    found = {name: faults(penstock("train", name, "--help").out, inspect.getdoc(one) or "") for name, one in every.items()}
    assert {name: problems for name, problems in found.items() if problems} == {}


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (" --n INT  People (default: 3). (default: None) ", ""),
        (" --n INT  People (default: 3). (default: 3) ", ""),
        (" --name STR  (default: '') ", ""),
        (" --names [STR ...]  Several. (default: ) ", ""),
        (
            "Ways:\n  --grpo.batch 16,32  choices A trial is one run.",
            "Ways:\n  --grpo.batch 16,32  choices\nA trial is one run.",
        ),
    ],
)
def test_the_check_sees_each_fault(shown: str, text: str) -> None:
    assert len(faults(shown, text)) == 1


@dataclass(kw_only=True)
class Example(Command):
    """Shows each kind of default."""

    none: int | None = None
    """Number."""
    empty: str = ""
    """Text."""
    said: int = 3
    """People (default: 3, or as many as there are)."""
    shown: int = 4
    """Rows."""

    def run(self) -> None:
        """Nothing."""


def help_of_a_command() -> None:
    Example.start(["--help"], "penstock example")


def help_of_a_recipe() -> None:
    def recipe(none: int | None = None, empty: str = "", said: int = 3, shown: int = 4) -> Any:
        """Shows each kind of default.

        Args:
            none: Number.
            empty: Text.
            said: People (default: 3, or as many as there are).
            shown: Rows.
        """

    assert parameters(recipe, ["--help"], "penstock train recipe") is None


@pytest.mark.parametrize("show", [help_of_a_command, help_of_a_recipe])
def test_help_shows_a_default_that_says_something(show: Callable[[], None], capsys: pytest.CaptureFixture[str]) -> None:
    show()
    shown = capsys.readouterr().out
    found = [re.search(rf"{text}.*", shown) for text in ("Number", "Text", "People", "Rows")]
    assert [one and one[0].strip() for one in found] == [
        "Number.", "Text.", "People (default: 3, or as many as there are).", "Rows. (default: 4)"
    ]  # fmt: skip
