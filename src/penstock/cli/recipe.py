"""From the command line to a run: a recipe is a function, its parameters are flags, and any leaf of its run can be set."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import io
import pkgutil
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from penstock.core.errors import SpecError
from penstock.core.run import Run
from penstock.core.spec import field_types, override, suggestion

Recipe = Callable[..., Run]


def built_in() -> dict[str, Recipe]:
    """Name to function of the recipes that come with Penstock: a public function of the module of the same name."""
    import penstock.recipes as package

    names = [module.name for module in pkgutil.iter_modules(package.__path__) if not module.name.startswith("_")]
    return {name: getattr(importlib.import_module(f"penstock.recipes.{name}"), name) for name in names}


def find(name: str) -> Recipe:
    """The recipe of a built-in name or ``FILE.py:FUNCTION``.

    Raises:
        SpecError: there is none, or it is no function.
    """
    from penstock.data.resolve import is_reference, resolve

    known = built_in()
    if name in known:
        return known[name]
    if is_reference(name):
        return resolve(name)
    raise SpecError(f'unknown recipe "{name}"{suggestion(name, known)} (or write FILE.py:FUNCTION)')


def build(name: str, words: Sequence[str]) -> Run:
    """The run of a recipe with flags: its own parameters, fields of the run, and ``--STAGE.field`` for any leaf.

    Raises:
        SpecError: an unknown or mistyped flag, or an impossible combination; one line.
    """
    recipe = find(name)
    own, rest = split_flags(words, set(inspect.signature(recipe).parameters))
    run = _call(recipe, name, own)
    if not isinstance(run, Run):
        raise SpecError(f'recipe "{name}" returned {type(run).__name__}, not a Run')
    for path, text in rest:
        run = set_leaf(run, path, text)
    return run


def split_flags(words: Sequence[str], own: set[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """Flags of the recipe's parameters as words, and all others as (path, value)."""
    mine: list[str] = []
    others: list[tuple[str, str]] = []
    position = 0
    while position < len(words):
        word = words[position]
        if not word.startswith("--") or word == "--":
            raise SpecError(f'"{word}" is not a flag; write --field value')
        flag, equals, value = word[2:].partition("=")
        values = [value] if equals else []
        position += 1
        while not equals and position < len(words) and not re.match(r"--[A-Za-z]", words[position]):
            values.append(words[position])
            position += 1
        field = flag.replace("-", "_")
        if field in own or field in ("help",) or (field.startswith("no_") and field[3:] in own):
            mine += [f"--{flag}", *values]
        elif len(values) != 1:
            raise SpecError(f"--{flag} needs exactly one value, got {len(values)}")
        else:
            others.append((field, values[0]))
    return mine, others


def _call(recipe: Recipe, name: str, words: list[str]) -> Run:
    import tyro

    told = io.StringIO()
    try:
        if "--help" in words:
            return tyro.cli(recipe, args=words, prog=f"penstock train {name}")
        with contextlib.redirect_stderr(told), contextlib.redirect_stdout(told):
            return tyro.cli(recipe, args=words, prog=f"penstock train {name}")
    except SystemExit as stop:
        if not stop.code:
            raise
        raise SpecError(f"{_plain_text(told.getvalue())} (see penstock train {name} --help)") from None


def _plain_text(boxed: str) -> str:
    """The message inside tyro's box as one line."""
    lines = [re.sub(r"[╭╮╰╯│─]+", " ", re.sub(r"\x1b\[[0-9;]*m", "", line)).strip() for line in boxed.splitlines()]
    kept = [
        line for line in lines if line and not line.startswith(("Parsing error", "Unrecognized options", "For full helptext"))
    ]
    return " ".join(kept) or "the flags cannot be read"


def set_leaf(run: Run, path: str, text: str) -> Run:
    """Set a field of the run, or of a stage by ``STAGE.field…``; a bare field that one stage alone has is found there."""
    head = path.partition(".")[0]
    stages = {stage.name.replace("-", "_"): stage.name for stage in run.stages}
    if head in stages:
        return override(run, f"stages.{stages[head]}.{path.partition('.')[2]}", text)
    if head in field_types(Run):
        return override(run, path, text)
    owners = [stage.name for stage in run.stages if head in field_types(type(stage)) and head not in ("name", "model")]
    if len(owners) == 1:
        return override(run, f"stages.{owners[0]}.{path}", text)
    known = [*field_types(Run), *(f"{stage}.FIELD" for stage in stages)]
    if owners:
        raise SpecError(f'field "{head}" is in several stages; write {" or ".join(f"--{owner}.{path}" for owner in owners)}')
    every = {*known, *(name for stage in run.stages for name in field_types(type(stage)))}
    raise SpecError(f'unknown field "{path}"{suggestion(head, sorted(every))}')


def take(words: Sequence[str], **defaults: Any) -> tuple[list[str], dict[str, Any]]:
    """Take a command's own flags out of ``words``; each default gives the flag's type. Booleans take no value.

    Raises:
        SpecError: a value is missing or of the wrong type.
    """
    left, taken, position = [], dict(defaults), 0
    while position < len(words):
        flag, equals, value = words[position].partition("=")
        name = flag[2:].replace("-", "_")
        if not flag.startswith("--") or name not in defaults:
            left.append(words[position])
            position += 1
            continue
        kind = type(defaults[name])
        position += 1
        if kind is bool:
            taken[name] = True
            continue
        if not equals:
            if position >= len(words):
                raise SpecError(f"{flag} needs a value")
            value = words[position]
            position += 1
        try:
            taken[name] = kind(value)
        except ValueError:
            raise SpecError(f"{flag}={value} is not {'a number' if kind in (int, float) else kind.__name__}") from None
    return left, taken


def with_name(run: Run, folder: Path) -> Run:
    """The run under the name of its folder."""
    return dataclasses.replace(run, name=folder.name)
