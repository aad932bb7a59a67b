"""From the command line to a run: a recipe is a function, its parameters are flags, and any leaf of its run can be set."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import pkgutil
import re
import traceback
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.config.run import Run
from penstock.config.spec import field_types, override, parse, plain, read_value, suggestion, unchecked
from penstock.core.errors import PenstockError, SpecError, blame
from penstock.runtime.engine_choice import with_engine

Recipe = Callable[..., Run]

GENERATOR = "generator"
"""The flag that names an engine: short for a runtime and ``roles.engine``."""


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
    if name.endswith(".py"):
        raise SpecError(f'"{name}" is a file; name the function in it that returns the run: {name}:FUNCTION')
    raise SpecError(f'unknown recipe "{name}"{suggestion(name, known)} (or write FILE.py:FUNCTION)')


def build(name: str, words: Sequence[str]) -> Run:
    """The run of a recipe with flags: its own parameters, fields of the run, and ``--STAGE.field`` for any leaf.

    Raises:
        SpecError: an unknown or mistyped flag, or an impossible combination; one line.
    """
    recipe = find(name)
    own = parameters(recipe, name)
    mine, leaves = split_flags(words, own)
    run = call(recipe, name, mine)
    for _, engine in [leaf for leaf in leaves if leaf[0] == GENERATOR]:
        run = with_engine(run, engine)
    return set_leaves(run, [leaf for leaf in leaves if leaf[0] != GENERATOR], (*own, GENERATOR))


def parameters(recipe: Recipe, name: str) -> dict[str, Any]:
    """A recipe's parameters that flags can set, and the type each is read as (Any: JSON where it parses, else text)."""
    with blame(SpecError, f'recipe "{name}"'):
        signature, hints = inspect.signature(recipe), typing.get_type_hints(recipe)
    found = {}
    for parameter in signature.parameters.values():
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            plain_default = isinstance(parameter.default, bool | int | float | str)
            found[parameter.name] = hints.get(parameter.name, type(parameter.default) if plain_default else Any)
    return found


def split_flags(words: Sequence[str], own: Mapping[str, Any]) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """The values of the recipe's own parameters, and (path, text) of all other flags."""
    mine: dict[str, Any] = {}
    others: list[tuple[str, str]] = []
    position = 0
    while position < len(words):
        word = words[position]
        if not re.match(r"--[^\W\d]", word):
            raise SpecError(f'"{word}" is not a flag; write --field value')
        flag, equals, value = word.partition("=")
        field = flag[2:].replace("-", "_")
        values = [value] if equals else []
        position += 1
        while not equals and position < len(words) and not re.match(r"--[^\W\d]", words[position]):
            values.append(words[position])
            position += 1
        if not values and own.get(field) is bool:
            values = ["true"]
        elif not values and field.startswith("no_") and own.get(field[3:]) is bool:
            field, values = field[3:], ["false"]
        if len(values) != 1:
            more = "; put text with spaces in quotes, and write a list as '[1, 2]'" if values else ""
            raise SpecError(f"{flag} needs exactly one value, got {len(values)}{more}")
        if field in own:
            mine[field] = read_flag(own[field], values[0], flag)
        else:
            others.append((field, values[0]))
    return mine, others


def read_flag(kind: Any, text: str, flag: str) -> Any:
    """The value of a recipe's parameter. Raises SpecError where the text is not of its type."""
    if kind is Path:
        return Path(text)
    try:
        if typing.get_origin(kind) is list:
            return list(read_value(tuple[(typing.get_args(kind)[0], ...)], text, flag))  # type: ignore[misc]
        return read_value(kind, text, flag)
    except TypeError as error:
        raise SpecError(f"{flag}: a parameter of type {kind} cannot be set by a flag ({error})") from error


def call(recipe: Recipe, name: str, values: Mapping[str, Any]) -> Run:
    """The run a recipe returns. Raises SpecError where a parameter is missing, the recipe fails, or it returns no run."""
    for parameter in inspect.signature(recipe).parameters.values():
        variadic = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if parameter.default is parameter.empty and not variadic and parameter.name not in values:
            flag = parameter.name.replace("_", "-")
            raise SpecError(f'recipe "{name}" needs --{flag} VALUE; penstock train {name} --help says what it is')
    try:
        run = recipe(**values)
    except PenstockError:
        raise
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(frame.filename).name}:{frame.lineno}"
        raise SpecError(f'recipe "{name}" raised {type(error).__name__}: {error} ({where})') from error
    if not isinstance(run, Run):
        raise SpecError(f'recipe "{name}" returned {type(run).__name__}, not a Run')
    return run


def wants_help(words: Sequence[str]) -> bool:
    return "-h" in words or "--help" in words


def show_help(name: str) -> None:
    """Print what a recipe does, its own flags, and how to set everything else."""
    import tyro

    recipe = find(name)
    with contextlib.suppress(SystemExit):
        tyro.cli(recipe, args=["--help"], prog=f"penstock train {name}")
    stages = ["STAGE"]
    with contextlib.suppress(SpecError):
        stages = [stage.name for stage in call(recipe, name, {}).stages]
    fields = ", ".join(field for field in field_types(Run) if field != "stages")
    print(
        f"Every other field of the run is a flag too:\n"
        f"  --{stages[-1]}.FIELD VALUE  of a stage ({', '.join(stages)}), such as --{stages[-1]}.learner.learning_rate 1e-4\n"
        f"  --FIELD VALUE  of the run: {fields}\n"
        f"  --name, --runs, --resume: see penstock train --help; penstock explain {name} shows sizes and memory"
    )


def set_leaves(run: Run, leaves: Sequence[tuple[str, str]], known: Sequence[str] = ()) -> Run:
    """Set one field after another. One that is impossible now is tried again after the others, and at last together with
    them: an algorithm and the critic that it needs fit only at once."""
    left = list(leaves)
    while left:
        refused: list[tuple[tuple[str, str], SpecError]] = []
        for path, text in left:
            try:
                run = set_leaf(run, path, text, known)
            except SpecError as error:
                refused.append(((path, text), error))
        if len(refused) == len(left):
            return set_together(run, left, known, refused[0][1])
        left = [leaf for leaf, _ in refused]
    return run


def set_together(run: Run, leaves: Sequence[tuple[str, str]], known: Sequence[str], refusal: SpecError) -> Run:
    """Set fields none of which is possible alone; raises ``refusal`` where they are not possible together either."""
    try:
        for path, text in leaves:
            run = set_leaf(run, path, text, known, unchecked)
        return parse(Run, plain(run))
    except SpecError:
        raise refusal from None


def set_leaf(
    run: Run, path: str, text: str, known: Sequence[str] = (), change: Callable[..., Any] = dataclasses.replace
) -> Run:
    """Set a field of the run, or of a stage by ``STAGE.field…``; a bare field that one stage alone has is found there.

    ``known`` are flags that exist beside those fields, for suggestions.
    """
    head, _, rest = path.partition(".")
    stages = {stage.name.replace("-", "_"): stage.name for stage in run.stages}
    owners = [stage.name for stage in run.stages if head in field_types(type(stage)) and head not in ("name", "model")]
    if head in stages:
        if not rest:
            raise SpecError(f"--{head} is a stage; set one of its fields, such as --{head}.steps {text}")
        target = f"stages.{stages[head]}.{rest}"
    elif head in field_types(Run) and head != "stages":
        target = path
    elif len(owners) == 1:
        target = f"stages.{owners[0]}.{path}"
    elif owners:
        raise SpecError(f'field "{head}" is in several stages; write {" or ".join(f"--{owner}.{path}" for owner in owners)}')
    else:
        every = {*known, *field_types(Run), *stages, *(name for stage in run.stages for name in field_types(type(stage)))}
        raise SpecError(f"unknown flag --{path}{suggestion(head, sorted(every - {'stages'}), '--')}")
    try:
        return override(run, target, text, change)
    except SpecError as error:
        named = any(str(error).startswith(f"{stage}: ") for stage in stages.values())
        raise SpecError(str(error) if named else f"--{path}: {error}") from error


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
        if not equals and kind is bool:
            value = "true"
        elif not equals:
            if position >= len(words):
                raise SpecError(f"{flag} needs a value")
            value = words[position]
            position += 1
        taken[name] = value if kind is str else read_value(kind, value, flag)
    return left, taken


def no_more_flags(words: Sequence[str], *known: str) -> None:
    """Refuse flags that a command does not have."""
    for word in words:
        if word.startswith("-") and len(word) > 1:
            flag = word.partition("=")[0]
            flags = ["--" + name.replace("_", "-") for name in known]
            raise SpecError(f"unknown flag {flag}{suggestion(flag, flags)}")


def require_device(device: str) -> None:
    """Refuse a ``--device`` that there is not."""
    if device not in ("auto", "cpu", "cuda"):
        raise SpecError(f"--device={device} is not one of auto, cpu, cuda")


def with_name(run: Run, folder: Path) -> Run:
    """The run under the name of its folder."""
    return dataclasses.replace(run, name=folder.name)
