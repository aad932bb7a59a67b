"""Typed Python functions as tools: their JSON schema from annotations and docstring, and arguments checked against it."""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.core.errors import SpecError

STATE = "state"
"""A parameter of this name is given the episode's own mapping and is in no schema."""
_SIMPLE = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
_PARAMETER = re.compile(r"^\s*(\w+)(?:\s*\([^)]*\))?:\s*(.+)$")


@dataclass(frozen=True)
class Tool:
    """A function that a policy may call. ``schema`` is as chat templates take it."""

    name: str
    function: Callable[..., Any]
    schema: Mapping[str, Any]
    stateful: bool = False
    world: bool = False
    """Whether a call changes something outside the episode, so that it must not be made again."""

    def problem(self, arguments: Mapping[str, Any]) -> str:
        """In words what of the arguments does not fit; empty: nothing."""
        parameters = self.schema["function"]["parameters"]
        known = parameters.get("properties", {})
        if unknown := [name for name in arguments if name not in known]:
            return f'{self.name} has no argument "{unknown[0]}"; its arguments are: {", ".join(known) or "none"}'
        if missing := [name for name in parameters.get("required", ()) if name not in arguments]:
            return f'{self.name} needs the argument "{missing[0]}"'
        for name, value in arguments.items():
            if not fits(value, known[name]):
                return f'{self.name}: the argument "{name}" must be {known[name].get("type", "one of its choices")}'
        return ""


def tool_of(function: Callable[..., Any]) -> Tool:
    """The tool of a function: its name, the first lines of its docstring, and its annotated parameters.

    Raises:
        SpecError: a parameter has no annotation, one that JSON does not know, or takes any number of arguments.
    """
    name = getattr(function, "__name__", type(function).__name__)
    hints = typing.get_type_hints(function)
    text = inspect.getdoc(function) or ""
    about, _, listed = text.partition("\nArgs:\n")
    described = {found[1]: found[2] for line in listed.splitlines() if (found := _PARAMETER.match(line))}
    properties: dict[str, Any] = {}
    required, stateful = [], False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == STATE:
            stateful = True
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise SpecError(f'tool "{name}": {parameter} cannot be named in a call; give it a name and a type')
        if parameter.name not in hints:
            raise SpecError(f'tool "{name}": annotate its parameter {parameter.name}, such as {parameter.name}: str')
        properties[parameter.name] = _schema(hints[parameter.name], f'tool "{name}": {parameter.name}')
        if parameter.name in described:
            properties[parameter.name]["description"] = described[parameter.name].strip()
        if parameter.default is parameter.empty:
            required.append(parameter.name)
    parameters = {"type": "object", "properties": properties, "required": required}
    schema = {"type": "function", "function": {"name": name, "description": about.strip(), "parameters": parameters}}
    return Tool(name, function, schema, stateful)


def _schema(kind: Any, where: str) -> dict[str, Any]:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind in _SIMPLE:
        return {"type": _SIMPLE[kind]}
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_schema(one, where) for one in arguments]}
    if kind is list or origin is list:
        return {"type": "array", **({"items": _schema(arguments[0], where)} if arguments else {})}
    if kind is dict or (origin is dict and arguments[0] is str):
        return {"type": "object", **({"additionalProperties": _schema(arguments[1], where)} if arguments else {})}
    raise SpecError(
        f"{where}: {kind} has no JSON schema here; use str, int, float, bool, Literal, list, dict[str, …] or X | None"
    )


def fits(value: Any, schema: Mapping[str, Any]) -> bool:
    """Whether a value is one of a schema that :func:`tool_of` writes; other members of a schema are not looked at."""
    if "enum" in schema:
        return value in schema["enum"]
    if "anyOf" in schema:
        return any(fits(value, one) for one in schema["anyOf"])
    kind = schema.get("type")
    if not isinstance(kind, str):  # written by others: they check it
        return True
    if kind == "array":
        return isinstance(value, list) and all(fits(one, schema.get("items", {})) for one in value)
    if kind == "object":
        return isinstance(value, dict) and all(fits(one, schema.get("additionalProperties") or {}) for one in value.values())
    kinds: dict[str, Any] = {**{name: one for one, name in _SIMPLE.items()}, "number": (int, float)}
    return isinstance(value, kinds.get(kind, object)) and (kind == "boolean" or not isinstance(value, bool))
