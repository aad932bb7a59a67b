"""Frozen specs from plain values and back, with errors that name the field and the fix.

A spec is a frozen keyword-only dataclass. :func:`parse` builds one from JSON-like values and refuses unknown keys and wrong
types by their dotted path; :func:`plain` is its inverse; :func:`difference` lists what changed between two.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import difflib
import functools
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple, TypeVar

from penstock.config.elsewhere import instead
from penstock.core.errors import SpecError
from penstock.core.network import require_no_password

SpecType = TypeVar("SpecType")

_REGISTRY: dict[str, type] = {}


if typing.TYPE_CHECKING:
    AnySpec = Any
else:

    class AnySpec:
        """Annotation of a field that takes any registered spec; in plain values its ``kind`` says which."""


def require(condition: bool, problem: str) -> None:
    """Refuse an impossible combination; the message is the fix."""
    if not condition:
        raise SpecError(problem)


class Bound(NamedTuple):
    """What a number must be, in words and as a test; a field annotated with one is checked when its spec is made."""

    words: str
    holds: Callable[[float], bool]


Positive = Annotated[float, Bound("above 0", lambda value: value > 0)]
NotNegative = Annotated[float, Bound("0 or more, where 0 switches it off", lambda value: value >= 0)]
Share = Annotated[float, Bound("from 0 to 1", lambda value: 0 <= value <= 1)]
PositiveShare = Annotated[float, Bound("above 0 and at most 1", lambda value: 0 < value <= 1)]
InnerShare = Annotated[float, Bound("above 0 and below 1", lambda value: 0 < value < 1)]
Count = Annotated[int, Bound("1 or more", lambda value: value >= 1)]
Whole = Annotated[int, Bound("0 or more", lambda value: value >= 0)]


@typing.dataclass_transform(frozen_default=True, kw_only_default=True)
def spec(cls: type[SpecType]) -> type[SpecType]:
    """Class decorator: a frozen keyword-only dataclass whose class name is its ``kind`` in plain values.

    A field whose annotation has a :class:`Bound` is refused outside of it, and any with a password in a URL.
    """
    made: Any = dataclasses.dataclass(frozen=True, kw_only=True)(cls)
    build = made.__init__

    @functools.wraps(build)
    def checked(self: SpecType, **fields: Any) -> None:
        if unknown := sorted(fields.keys() - made.__dataclass_fields__.keys()):
            raise SpecError(f'{made.__name__}: unknown field "{unknown[0]}"{other_name(unknown[0], made)}')
        for name, (bound, usual) in _bounds(made).items():
            value = fields.get(name, usual)
            require(bound.holds(value), f"{made.__name__}.{name}={value} must be {bound.words}; {usual} is usual")
        require_no_password(tuple(fields.values()))
        build(self, **fields)

    made.__init__ = checked
    _REGISTRY[made.__name__] = made
    return typing.cast(type[SpecType], made)


@functools.cache
def _bounds(cls: Any) -> dict[str, tuple[Bound, Any]]:
    """The bound of every field that has one, and the field's default."""
    hints, fields = typing.get_type_hints(cls, include_extras=True), dataclasses.fields(cls)
    noted = {field.name: (getattr(hints[field.name], "__metadata__", [None])[0], field.default) for field in fields}
    return {name: found for name, found in noted.items() if isinstance(found[0], Bound)}


@functools.cache
def _field_types(cls: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}


def field_types(cls: type) -> dict[str, Any]:
    """The resolved annotation of every field of a spec class, in order."""
    return _field_types(cls)


def suggestion(name: str, known: typing.Iterable[str]) -> str:
    """``; did you mean "x"?`` if something known has ``name`` as a word or is close to it, else the list of what is known."""
    options = list(known)
    close = [option for option in options if name in option.split("_")] or difflib.get_close_matches(name, options, n=1)
    if close:
        return f'; did you mean "{close[0]}"?'
    return f"; known are: {', '.join(options)}"


def other_name(name: str, holder: Any) -> str:
    """What is here in the place of a field that a spec, or its class, has not: what TRL or verl call so, or what is close."""
    return instead(name, {"": holder}) or suggestion(name, holder.__dataclass_fields__)


def parse(cls: type[SpecType], value: Any, path: str = "") -> SpecType:
    """Build a spec of class ``cls`` from a mapping of plain values.

    Raises:
        SpecError: unknown key, missing key, wrong type, or an impossible combination, by dotted path.
    """
    where = path or cls.__name__
    if isinstance(value, cls):
        return value
    if not isinstance(value, Mapping):
        raise SpecError(f"{where}: expected the fields of {cls.__name__}, got {value!r}")
    known = field_types(cls)
    given = {key: item for key, item in value.items() if key != "kind" or "kind" in known}
    for key in given:
        if key not in known:
            raise SpecError(f'{where}: unknown field "{key}"{other_name(key, cls)}')
    built = {key: convert(known[key], item, f"{path}.{key}" if path else key) for key, item in given.items()}
    try:
        return cls(**built)
    except TypeError as error:
        raise SpecError(f"{where}: {error}") from error


def convert(kind: Any, value: Any, path: str) -> Any:
    """Check a plain value against an annotation and convert lists to tuples and mappings to specs."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return value
    if kind is AnySpec:
        return _convert_registered(value, path)
    if origin in (typing.Union, types.UnionType):
        return _convert_union(arguments, value, path)
    if origin is typing.Literal:
        if value not in arguments:
            raise SpecError(f"{path}={value!r} is not one of {', '.join(map(repr, arguments))}")
        return value
    if origin is tuple:
        return _convert_tuple(arguments, value, path)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise SpecError(f"{path}={value!r} is not a mapping")
        return {key: convert(arguments[1], item, f"{path}.{key}") for key, item in value.items()}
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return parse(kind, value, path)
    return _convert_scalar(kind, value, path)


def _convert_registered(value: Any, path: str) -> Any:
    if type(value).__name__ in _REGISTRY:
        return value
    if isinstance(value, str) and value in _REGISTRY:  # the name of a spec alone: its defaults
        return parse(_REGISTRY[value], {}, path)
    if isinstance(value, str) and value not in _REGISTRY and difflib.get_close_matches(value, _REGISTRY, n=1):
        raise SpecError(f"{path}={value!r} is not a spec{suggestion(value, sorted(_REGISTRY))}")
    if not isinstance(value, Mapping) or "kind" not in value:
        raise SpecError(f'{path}={value!r} is not a spec; give its fields and a "kind" of {", ".join(sorted(_REGISTRY))}')
    if value["kind"] not in _REGISTRY:
        raise SpecError(f'{path}: unknown kind "{value["kind"]}"{suggestion(str(value["kind"]), sorted(_REGISTRY))}')
    return parse(_REGISTRY[value["kind"]], value, path)


def _convert_scalar(kind: type, value: Any, path: str) -> Any:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError as error:
            raise SpecError(f"{path} is larger than any number that a float holds") from error
    if kind is type(None) and value is None:
        return None
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise SpecError(f"{path}={value!r} is not {_a(kind)}")
    return value


def _a(kind: Any) -> str:
    name = {int: "integer", float: "number", str: "text", bool: "boolean (true or false)"}.get(kind, str(kind))
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"


def _convert_union(options: tuple[Any, ...], value: Any, path: str) -> Any:
    if isinstance(value, Mapping) and "kind" in value:
        named = {option.__name__: option for option in options if isinstance(option, type)}
        if value["kind"] not in named and AnySpec in options:
            return _convert_registered(value, path)
        if value["kind"] not in named:
            raise SpecError(f'{path}: unknown kind "{value["kind"]}"{suggestion(str(value["kind"]), named)}')
        return parse(named[value["kind"]], value, path)
    if isinstance(value, str) and str not in options:  # the name of a spec alone: its defaults
        for option in options:
            if dataclasses.is_dataclass(option) and isinstance(option, type) and option.__name__ == value:
                return parse(option, {}, path)
    problems = []
    for option in options:
        try:
            return convert(option, value, path)
        except SpecError as error:
            problems.append(str(error))
    raise SpecError(problems[0])


def _convert_tuple(arguments: tuple[Any, ...], value: Any, path: str) -> tuple[Any, ...]:
    if isinstance(value, str) or not isinstance(value, list | tuple):
        raise SpecError(f"{path}={value!r} is not a list; write one, such as [1, 2]")
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return tuple(convert(arguments[0], item, f"{path}[{i}]") for i, item in enumerate(value))
    if len(value) != len(arguments):
        raise SpecError(f"{path}={value!r} needs exactly {len(arguments)} values")
    return tuple(convert(kind, item, f"{path}[{i}]") for i, (kind, item) in enumerate(zip(arguments, value, strict=True)))


def plain(value: Any) -> Any:
    """A spec as JSON-like values; nested specs carry their class name as ``kind``."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {"kind": type(value).__name__} | {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def difference(old: Any, new: Any, path: str = "") -> list[str]:
    """Lines ``path: old → new`` for every leaf in which two plain values differ."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        lines = []
        for key in sorted({*old, *new}, key=str):
            lines += difference(old.get(key), new.get(key), f"{path}.{key}" if path else str(key))
        return lines
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [line for i, (a, b) in enumerate(zip(old, new, strict=True)) for line in difference(a, b, f"{path}[{i}]")]
    return [] if old == new else [f"{path}: {old!r} → {new!r}"]


def unchecked(target: SpecType, **changes: Any) -> SpecType:
    """A copy with changed fields that no check has seen: a step on the way to a combination that is checked as a whole."""
    made = copy.copy(target)
    for name, value in changes.items():
        object.__setattr__(made, name, value)
    return made


def override(target: SpecType, path: str, text: str, change: Callable[..., Any] = dataclasses.replace) -> SpecType:
    """A copy of a spec with the leaf at a dotted ``path`` replaced by the value written as ``text``.

    An element of a tuple of named specs is addressed by its ``name``. ``change`` makes the copies: ``unchecked`` puts the
    checks off. Raises SpecError for an unknown path or wrong type.
    """
    head, _, rest = path.partition(".")
    known = field_types(type(target))
    if head not in known:
        raise SpecError(f'unknown field "{head}" of {type(target).__name__}{other_name(head, target)}')
    current = getattr(target, head)
    if rest and isinstance(current, tuple):
        name, _, deeper = rest.partition(".")
        names = [getattr(item, "name", None) for item in current]
        if name not in names or not deeper:
            raise SpecError(f'{head}: no element "{name}"{suggestion(name, [str(n) for n in names])}')
        index = names.index(name)
        current = (*current[:index], override(current[index], deeper, text, change), *current[index + 1 :])
        return typing.cast(SpecType, change(typing.cast(Any, target), **{head: current}))
    if rest:
        if not dataclasses.is_dataclass(current):
            raise SpecError(f"{head}={current!r} has no fields, so {path} cannot be set; give {head} itself first")
        changed = override(current, rest, text, change)
    else:
        changed = read_value(known[head], text, path)
    return typing.cast(SpecType, change(typing.cast(Any, target), **{head: changed}))


def read_value(kind: Any, text: str, path: str) -> Any:
    """Read a value of an annotated type from the command line: JSON where it parses, else plain text."""
    import json

    try:
        value = json.loads(text)
    except ValueError:
        value = {"True": True, "False": False, "None": None}.get(text, text)
    try:
        return convert(kind, value, path)
    except SpecError:
        if value is not None and not isinstance(value, str):
            with contextlib.suppress(SpecError):
                return convert(kind, text, path)
        raise
