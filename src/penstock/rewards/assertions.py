"""Runs assertions about code that must not judge itself: the main program of a sandbox, with the standard library alone.

The tested code runs in a child process, forked before the tests are read. What the tests call there goes over a socket pair as
plain data and comes back as plain data, so that every comparison is made by this process, with its own types; an object of the
tested code's own stays there and is reached by number. The verdicts go to a pipe that the child does not have.
"""

from __future__ import annotations

import builtins
import collections
import contextlib
import ctypes
import importlib
import json
import os
import socket
import sys
import types
from typing import Any

_PLAIN = (type(None), bool, int, float, str)
_SEQUENCES: dict[type, str] = {list: "list", tuple: "tuple", set: "set", frozenset: "frozenset"}
_MAPPINGS = (dict, collections.OrderedDict, collections.defaultdict, collections.Counter)


class Unsupported(Exception):
    """A test hands over what is no plain data."""


def encode(value: Any, keep: list[Any] | None) -> Any:
    """A value for JSON; ``keep`` holds objects that stay here, None where none may."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind in _SEQUENCES:
        return [_SEQUENCES[kind], *(encode(each, keep) for each in value)]
    if kind in _MAPPINGS:
        return ["dict", *([encode(key, keep), encode(each, keep)] for key, each in value.items())]
    if kind in (bytes, bytearray):
        return ["bytes", bytes(value).hex()]
    if kind is Remote:
        return ["own", value._number]
    if kind is types.ModuleType and value.__name__ in sys.stdlib_module_names:
        return ["module", value.__name__]
    if keep is None:
        raise Unsupported(f"a test passes {kind.__name__}, which is no plain data, to the tested code")
    keep.append(value)
    return ["object", len(keep) - 1]


def decode(data: Any, objects: Any) -> Any:
    """What :func:`encode` was given; ``objects(kind, number)`` is asked for what is no plain data."""
    if not isinstance(data, list):
        return data
    kind, *rest = data
    if kind == "dict":
        return {decode(key, objects): decode(each, objects) for key, each in rest}
    if kind == "bytes":
        return bytes.fromhex(rest[0])
    if kind == "module":
        return importlib.import_module(rest[0]) if rest[0] in sys.stdlib_module_names else None
    if kind in ("own", "object"):
        return objects(kind, int(rest[0]))
    made = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}[kind]
    return made(decode(each, objects) for each in rest)


class Line:
    """One end of the socket pair: a line of JSON each way."""

    def __init__(self, link: socket.socket) -> None:
        self._link, self._lines = link, link.makefile("rb")

    def send(self, data: Any) -> None:
        self._link.sendall(json.dumps(data).encode() + b"\n")

    def receive(self) -> Any:
        return json.loads(self._lines.readline())


class Remote:
    """An object of the tested code: calls, items and attributes of it are asked for; nothing else is, no equality either."""

    def __init__(self, line: Line, number: int) -> None:
        self._line, self._number = line, number

    def _ask(self, verb: str, *arguments: Any, **named: Any) -> Any:
        self._line.send([verb, self._number, encode(arguments, None), encode(named, None)])
        answer = self._line.receive()
        for given, changed in zip(arguments, self._read(answer["arguments"]), strict=True):
            if type(given) in (list, dict, set) and type(changed) is type(given):  # changed in place
                given.clear()
                given.extend(changed) if isinstance(given, list) else given.update(changed)
        if "error" in answer:
            kind = getattr(builtins, str(answer["error"]), None)
            known = isinstance(kind, type) and issubclass(kind, Exception)
            known = known and kind not in (StopIteration, StopAsyncIteration)  # which would end a test's own loop early
            failure: type[Exception] = kind if known else RuntimeError  # type: ignore[assignment]
            raise failure(str(answer["message"]))
        return self._read(answer["value"])

    def _read(self, data: Any) -> Any:
        return decode(data, lambda kind, number: Remote(self._line, number))

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._ask("call", *arguments, **named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._ask("attribute", name)

    def __getitem__(self, key: Any) -> Any:
        return self._ask("item", key)

    def __len__(self) -> int:
        return int(self._ask("length"))

    def __iter__(self) -> Any:
        return iter(self._ask("list"))

    def __bool__(self) -> bool:
        raise TypeError("the tested code gave an object that is no plain data")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Remote) and other._number == self._number

    def __hash__(self) -> int:
        return hash(self._number)


def serve(line: Line, code: str) -> None:
    """The child: run the code, name what it defines, and answer."""
    main = types.ModuleType("solution")
    sys.modules["solution"] = main
    exec(compile(code, "solution.py", "exec"), main.__dict__)
    kept: list[Any] = []
    own = {name: value for name, value in main.__dict__.items() if not name.startswith("__")}
    line.send({name: encode(value, kept) for name, value in own.items()})
    verbs: dict[str, Any] = {
        "call": lambda f, *a, **k: f(*a, **k),
        "attribute": getattr,
        "item": lambda o, k: o[k],
        "length": len,
        "list": list,
    }
    while True:
        verb, number, arguments, named = line.receive()
        given = decode(arguments, lambda kind, each: kept[each])
        answer: dict[str, Any] = {}
        try:
            value = verbs[verb](kept[number], *given, **decode(named, lambda kind, each: kept[each]))
            answer["value"] = encode(value, kept)
        except BaseException as error:
            answer = {"error": type(error).__name__, "message": str(error)}
        line.send({**answer, "arguments": encode(given, kept)})


def judge(line: Line, tests: list[str], verdicts: int) -> None:
    """Run the tests over what the child defines; one line each goes to ``verdicts``: 1, 0, or what they cannot do."""
    numbers = {name: value for name, value in line.receive().items() if not hasattr(builtins, name)}
    space: dict[str, Any] = {"__name__": "tests"}
    for name, value in numbers.items():
        if name not in sys.stdlib_module_names or value == [
            "module",
            name,
        ]:  # what a test judges with is never the tested code's
            space[name] = decode(value, lambda kind, number: Remote(line, number))
    for test in tests:
        try:
            exec(compile(test, "tests.py", "exec"), space)
            verdict = "1"
        except Unsupported as error:
            verdict = f"unsupported: {error}"
        except BaseException:
            verdict = "0"
        os.write(verdicts, verdict.encode() + b"\n")


def main() -> None:
    """Read ``solution.py``, fork, then read the tests from the standard input."""
    sys.set_int_max_str_digits(0)
    ctypes.CDLL(None).prctl(
        4, 0, 0, 0, 0
    )  # not dumpable: where there is a /proc, no process of this user may look into this one
    with open("solution.py", encoding="utf-8") as file:
        code = file.read()
    ours, theirs = socket.socketpair()
    null = os.open(os.devnull, os.O_RDWR)
    if os.fork() == 0:
        for number in range(3):
            os.dup2(null, number)
        kept = theirs.detach()
        os.dup2(kept, 3)
        os.closerange(4, 4096)
        with contextlib.suppress(BaseException):
            serve(Line(socket.socket(fileno=3)), code)
        os._exit(0)
    theirs.close()
    sys.path[:] = [path for path in sys.path if path and path != os.getcwd()]  # the child may write modules there
    tests = json.load(sys.stdin)
    verdicts = os.dup(1)
    os.dup2(null, 1)
    with contextlib.suppress(BaseException):
        judge(Line(ours), tests, verdicts)
    os._exit(0)


if __name__ == "__main__":
    main()
