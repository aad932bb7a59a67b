"""Any leaf of a run, set by its path: a field of the run, of a stage by ``STAGE.field…``, or of the one stage that has it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from penstock.config.elsewhere import as_flag, has, instead
from penstock.config.run import Run
from penstock.config.spec import field_types, override, parse, plain, suggestion, unchecked
from penstock.core.errors import SpecError


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

    ``known`` are other flags that exist, for suggestions.
    """
    head, _, rest = path.partition(".")
    stages = {stage.name.replace("-", "_"): stage.name for stage in run.stages}
    owners = [stage.name for stage in run.stages if head in field_types(type(stage)) and head not in ("name", "model")]
    asked, at = (rest, (stages[head],)) if head in stages else (path, tuple(stages.values()))
    holders = {"": {**vars(run), "folder": "", "resume": ""}, **{f"{one.name}.": one for one in run.stages if one.name in at}}
    if asked and not any(has(held, asked) for held in holders.values()) and (said := instead(asked, holders, as_flag)):
        raise SpecError(f"unknown flag --{path}{said}")
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
        fields = {*field_types(Run), *stages, *(name for stage in run.stages for name in field_types(type(stage)))}
        every = sorted({*known, *(f"--{field}" for field in fields - {"stages"})})
        raise SpecError(f"unknown flag --{path}{suggestion(f'--{head}', every)}")
    try:
        return override(run, target, text, change)
    except SpecError as error:
        named = any(str(error).startswith(f"{stage}: ") for stage in stages.values())
        raise SpecError(str(error) if named else f"--{path}: {error}") from error
