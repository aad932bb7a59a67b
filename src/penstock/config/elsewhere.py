"""What TRL and verl call a field, and what does it here: errors about unknown fields, keywords and flags answer with it."""

from __future__ import annotations

import functools
import json
import shlex
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

TABLE = Path(__file__).with_name("elsewhere.tsv")
"""Their names; fields here, as paths in a run or stage, each with an example in JSON where that says more (one with ``?`` must
only be there); and a note. Of several rows for a name the first counts whose fields are there."""

GROUPS = ("actor_rollout_ref", "actor", "rollout", "ref", "algorithm", "critic", "data", "trainer", "model", "optim")
"""Groups of verl's names."""

APART = ("data", "evaluation", "rewards", "model", "checkpoint", "roles")
"""Specs whose fields are no keywords of ``penstock.train`` by their bare names."""


class Row(NamedTuple):
    """A row of the table: the fields that are shown with their examples or nothing, and all that must be there."""

    names: list[str]
    shown: list[tuple[str, str]]
    needed: list[str]
    note: str


@functools.cache
def rows() -> list[Row]:
    """The table, read."""
    found = []
    for line in TABLE.read_text(encoding="utf-8").splitlines()[1:]:
        names, fields, note = line.split("\t")
        pairs = [(path, value) for path, _, value in (one.partition("=") for one in fields.split(" ; ")) if path]
        shown = [(path, value) for path, value in pairs if path[-1] != "?"]
        found.append(Row(names.split(), shown, [path.rstrip("?") for path, _ in pairs], note))
    return found


@functools.cache
def rows_of(name: str) -> list[Row]:
    """The rows for a name, else for what it ends in, else that for the only name that ends in it."""
    group = name.partition(".")[0]
    for end in (name.split(".", cut)[-1] for cut in range(name.count(".") + 1)):
        found = [row for row in rows() if any(fnmatchcase(end, known) for known in row.names)]
        ours = any(path.startswith(f"{group}.") for row in found for path in row.needed)
        if found and (end == name or group in GROUPS or ours):
            return found
    found = [row for row in rows() if any(known.endswith(f".{name}") for known in row.names)]
    return found if len(found) == 1 else []


def has(holder: Any, path: str, inner: bool = False) -> bool:
    """Whether a spec, its class, or a mapping of names to specs has the field of a path, or with ``inner`` of what follows its
    first part; within None any may be given."""
    for part in path.split(".")[inner:] or [""]:
        if holder is None:
            return True
        holder = holder[0] if isinstance(holder, tuple) and holder else holder
        if part not in (holder if isinstance(holder, Mapping) else getattr(holder, "__dataclass_fields__", {})):
            return False
        holder = holder[part] if isinstance(holder, Mapping) else getattr(holder, part, None)
    return True


def as_path(holder: Any, before: str, path: str, example: str) -> str:
    """A field as its path in a run or stage."""
    return f"{path}={example}" if example else path


def as_flag(holder: Any, before: str, path: str, example: str) -> str:
    """A field as the command line takes it."""
    whole, _, field = path.partition(".")
    needed = {"rewards": {"function": '"NAME"'}, "evaluation": {"data": '{"source": "FILE.jsonl"}'}}.get(whole, {})
    if needed and field and (whole == "rewards" or getattr(holder, whole, 0) is None):  # set as a whole
        inner = ", ".join(f'"{name}": {one}' for name, one in {**needed, field: example or needed.get(field, "…")}.items())
        return f"--{before}{whole} " + (f"'[{{{inner}}}]'" if whole == "rewards" else f"'{{{inner}}}'")
    run = {"folder": "--runs FOLDER and --name NAME", "resume": "--resume RUN"}
    return run.get(path) or f"--{before}{path} {shlex.quote(example.strip(chr(34))) if example else '…'}"


def as_keyword(holder: Any, before: str, path: str, example: str) -> str:
    """A field as ``penstock.train`` takes it."""
    first, *rest = path.removeprefix("algorithm.").split(".")
    text = repr(json.loads(example)) if example else "…"
    if first == "rewards":
        return f"reward=penstock.reward({'' if rest == ['function'] else f'FUNCTION, {rest[0]}='}{text})"
    if first == "evaluation" and rest:
        return "evaluation=penstock.EvaluationSpec(data=…" + (")" if rest == ["data"] else f", {rest[0]}={text})")
    for part in reversed(rest):
        text = f'{{"{part}": {text}}}'
    return f"{first}={text}"


def instead(name: str, holders: Mapping[str, Any], write: Callable[[Any, str, str, str], str] = as_path) -> str:
    """``; here it is …``: what does here what TRL or verl call ``name``; empty if neither has it.

    ``holders``: specs by what comes before their paths, ``STAGE.`` or nothing. ``write``: gives a field as a person writes it.
    """
    found = rows_of(name)
    for row, inner in ((row, inner) for row in found for inner in (False, True)):
        if near := {at: held for at, held in holders.items() if all(has(held, path, inner) for path in row.needed)}:
            each = (" and ".join(write(held, at, *one) for one in row.shown) for at, held in near.items())
            return _said(row, " or ".join(each))
    missing = "" if write is as_path else ", of other stages or algorithms"
    return "".join(_said(row, " and ".join(as_path(0, "", *one) for one in row.shown) + missing) for row in found[:1])


def _said(row: Row, fields: str) -> str:
    return f"; here it is {fields}{row.note and ': '}{row.note}" if row.shown else f"; {row.note}"


def alone(home: str, held: Any, field: str) -> str:
    """A keyword of ``penstock.train`` that sets a field of one spec, whatever others have a field of that name."""
    return f"algorithm=penstock.{type(held).__name__}({field}=…)" if home == "algorithm" else f'{home}={{"{field}": …}}'


def refusal(name: str, value: Any, holder: Mapping[str, Any]) -> str:
    """Why ``penstock.train`` does not take a keyword of TRL's or verl's: there is none here, or one that means another thing;
    empty where there is nothing to say. ``holder``: the fields of run and stage."""
    if isinstance(value, Mapping) and value and name.rpartition(".")[2] != "options":
        return next(filter(None, (refusal(f"{name}.{field}", item, holder) for field, item in value.items())), "")
    homes = [one for one, held in holder.items() if one not in APART and held is not None and has(held, name)]
    said, meant = instead(name, {"": holder}, as_keyword), {field for row in rows_of(name) for field, _ in row.shown}
    if said and not homes and not has(holder, name):
        return f'unknown field "{name}"{said}'
    if meant and len(homes) == 1 and not has(holder, name) and f"{homes[0]}.{name}" not in meant and "." not in name:
        return (
            f'"{name}" of TRL and verl is another thing{said}; for the one here write {alone(homes[0], holder[homes[0]], name)}'
        )
    return ""
