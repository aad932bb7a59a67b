"""The part of pytest that published tests use, by the standard library alone. Source: docs.pytest.org."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import numbers
import re
import types
import unittest
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from penstock.rewards.crossing import Unsupported


class approx:  # noqa: N801 - pytest's name
    """Equal to numbers within ``rel`` (1e-6) of the expected one or ``abs`` (1e-12); to containers of them too."""

    def __init__(self, expected: Any, rel: float | None = None, abs: float | None = None) -> None:
        self._expected, self._bounds = expected, (rel, abs)

    def __eq__(self, value: Any) -> bool:
        expected = self._expected
        if isinstance(expected, Mapping | list | tuple) and isinstance(value, Mapping | list | tuple):
            keys = expected.keys() if isinstance(expected, Mapping) else range(len(expected))
            same = len(value) == len(expected) and isinstance(expected, Mapping) == isinstance(value, Mapping)
            return same and all(value[key] == approx(expected[key], *self._bounds) for key in keys)
        if not isinstance(expected, numbers.Complex) or not isinstance(value, numbers.Complex):
            return bool(expected == value)
        expected, given = complex(expected), complex(value)
        rel, least = self._bounds
        relative = rel if rel is not None else 0.0 if least is not None else 1e-6
        bound = max(relative * abs(expected), 1e-12 if least is None else least)
        return bool(expected == given or abs(expected - given) <= bound)


class raises(contextlib.AbstractContextManager[Any]):  # noqa: N801 - pytest's name
    """The block, or the call, must raise one of these; ``match`` is searched for in its text."""

    def __init__(self, kinds: Any, *call: Any, match: str | None = None, **named: Any) -> None:
        self._kinds, self._match = kinds, match or ""
        if call:
            with self:
                call[0](*call[1:], **named)

    def __exit__(self, kind: Any, error: Any, trace: object) -> bool:
        assert kind is not None, f"did not raise {self._kinds}"
        if not issubclass(kind, self._kinds):
            return False
        assert re.search(self._match, str(error)), f"{error} does not match {self._match}"
        self.type, self.value = kind, error
        return True


class _Marks:
    """``parametrize`` and ``skip`` are noted on the function; marks that change no verdict are passed over."""

    def __getattr__(self, name: str) -> Any:
        if name in ("skip", "skipif", "xfail"):
            return lambda *given, **_: _noted("skipped", all(each for each in given if type(each) is bool), *given)
        return lambda *given, **_: _noted(name, given, *given)


def _noted(name: str, value: Any, *given: Any) -> Any:
    """The decorator that notes a value on its function; the function itself, if that is all that was given."""

    def note(function: Any) -> Any:
        function.noted = [*getattr(function, "noted", ()), (name, value)]
        return function

    return note(given[0]) if len(given) == 1 and callable(given[0]) else note


def _raise(kind: type[BaseException]) -> Any:
    def stop(reason: str = "", **_: Any) -> None:
        raise kind(reason)

    return stop


def _unknown(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise Unsupported(f"a test uses pytest.{name}; known are approx, raises, mark, fixture, param, fail and skip")


def module() -> types.ModuleType:
    """What ``import pytest`` gives a test."""
    made = types.ModuleType("pytest")
    vars(made).update(
        approx=approx, raises=raises, mark=_Marks(), fail=_raise(AssertionError), skip=_raise(unittest.SkipTest),
        fixture=lambda *given, **_: _noted("fixture", True, *given), __getattr__=_unknown,
        param=lambda *values, **_: values if len(values) > 1 else values[0],
    )  # fmt: skip
    return made


def cases(owner: Any, function: Any) -> Iterator[dict[str, Any]]:
    """The arguments of each call that ``parametrize`` asks for: one without any where it asks for none.

    Raises:
        SkipTest: the function or its class is marked as skipped.
    """
    noted = [*getattr(function, "noted", ()), *(getattr(owner, "noted", ()) if owner is not function else ())]
    if ("skipped", True) in noted:
        raise unittest.SkipTest("marked")
    lists = []
    for names, values in (given[:2] for name, given in noted if name == "parametrize"):
        split = re.findall(r"\w+", names) if isinstance(names, str) else list(names)
        lists.append([dict(zip(split, each if len(split) > 1 else [each], strict=True)) for each in values])
    for chosen in itertools.product(*lists):
        yield {name: value for each in chosen for name, value in each.items()}


def arguments(
    function: Any, given: dict[str, Any], fixture: Callable[[str], Any], stack: contextlib.ExitStack
) -> dict[str, Any]:
    """Arguments of a test function: those ``given``, others by the fixtures of their names, which end with ``stack``."""
    wanted = {}
    for name in inspect.signature(function).parameters:
        made = fixture(name)
        if name not in given and not hasattr(made, "noted"):
            raise Unsupported(f'a test asks for the fixture "{name}", which it does not define')
        wanted[name] = given[name] if name in given else made(**arguments(made, {}, fixture, stack))
        if inspect.isgenerator(wanted[name]) and name not in given:
            stack.callback(next, wanted[name], None)
            wanted[name] = next(wanted[name])
    return wanted
