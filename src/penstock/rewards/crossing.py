"""Values and calls between the process of the tested code and the process that judges it; the standard library alone.

A line of JSON each way. Numbers, texts, containers and a few types of the standard library cross as data and are made anew on
the other side by its own types, so that the tested code has no say in how they compare. Any other object stays where it is and
is reached by its number: what is done to it is asked for. The tested code compares objects of its own with one another, and
none with a value of the test's.
"""

from __future__ import annotations

import asyncio
import builtins
import collections
import copyreg
import datetime
import decimal
import fractions
import inspect
import io
import json
import operator
import re
import socket
import sys
import types
from typing import Any

_PLAIN = (type(None), bool, int, float, str)
_ITEMS: dict[type, Any] = {
    **{kind: kind for kind in (list, tuple, set, frozenset, collections.deque, bytes, bytearray)},
    dict: dict, collections.OrderedDict: collections.OrderedDict, collections.defaultdict: dict,
    collections.Counter: lambda pairs: collections.Counter(dict(pairs)),
    type({}.keys()): lambda keys: dict.fromkeys(keys).keys(), type({}.items()): lambda pairs: dict(pairs).items(),
}  # fmt: skip
"""Types that are made of their items, and how."""
_VALUES = (
    complex, range, slice, fractions.Fraction, decimal.Decimal, datetime.date, datetime.time, datetime.datetime,
    datetime.timedelta, datetime.timezone,
)  # fmt: skip
"""Types that are made of the arguments that they give to be copied."""
_MAKERS = {kind.__name__: made for kind, made in _ITEMS.items()}
_MAKERS |= {kind.__name__: lambda parts, kind=kind: kind(*parts) for kind in _VALUES}
_FIXED: tuple[Any, ...] = (int, float, str, complex, bytes, tuple, frozenset)
"""Types that cannot change: an object of a subclass (a namedtuple, an IntEnum) crosses with its content and its number."""
_CHANGING: tuple[Any, ...] = (list, set, dict, collections.deque)
"""Types that can: the content of an object of a subclass is asked for when it is compared."""


def _content(value: Any, base: Any) -> Any:
    """What an object of a subclass holds, by the methods of its base."""
    if base in (int, float, str, complex):
        return getattr(base, f"__{base.__name__}__")(value)
    return base(base.items(value) if base is dict else base.__iter__(value))


class Unsupported(Exception):
    """A test does what cannot be carried out over the line; never caused by the tested code."""


class Line:
    """One end of a socket pair, and the coding of values on it; the ends differ in how they code objects."""

    def __init__(self, link: socket.socket) -> None:
        self._link, self._lines = link, link.makefile("rb")

    def send(self, data: Any) -> None:
        self._link.sendall(json.dumps(data).encode() + b"\n")

    def receive(self) -> Any:
        return json.loads(self._lines.readline() or self.ended())

    def ended(self) -> bytes:
        """The other end is gone."""
        raise EOFError

    def encode(self, value: Any) -> Any:
        """A value for JSON."""
        kind: Any = type(value)
        if kind in _PLAIN:
            return value
        if kind in _ITEMS:
            parts = value.items() if isinstance(value, dict) else value
        elif kind in _VALUES:
            made, parts = value.__reduce_ex__(4)[:2]
            parts = parts[made is copyreg.__newobj__ :]  # type: ignore[attr-defined]
        elif kind is type and value in vars(builtins).values():
            return ["type", value.__name__]
        else:
            return self.encode_object(value)
        return [kind.__name__, *map(self.encode, parts)]

    def decode(self, data: Any) -> Any:
        """A value of what :meth:`encode` of the other end gave."""
        if not isinstance(data, list):
            return data
        name, *parts = data
        if name == "object":
            return self.decode_object(*parts)
        if name == "type":
            kind = getattr(builtins, parts[0])
            return kind if isinstance(kind, type) else None
        return _MAKERS[name](list(map(self.decode, parts)))

    def encode_object(self, value: Any) -> Any:
        raise NotImplementedError

    def decode_object(self, number: int, base: str = "", content: Any = None) -> Any:
        raise NotImplementedError


class Tested(Line):
    """The end of the tested code. Nothing that it sends is believed to be more than data."""

    def __init__(self, link: socket.socket) -> None:
        super().__init__(link)
        self._kept: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._space: dict[str, Any] = {}

    def encode_object(self, value: Any) -> Any:
        number = self._numbers.setdefault(id(value), len(self._kept))
        if number == len(self._kept):
            self._kept.append(value)
        kind = type(value)
        if issubclass(kind, type) and issubclass(value, BaseException):
            parents = [self.encode(each) for each in value.__bases__ if issubclass(each, BaseException)]
            return ["object", number, "error", [value.__name__, value.__module__, *parents]]
        base = next((base for base in _FIXED + _CHANGING if issubclass(kind, base)), None)
        content = [self.encode(_content(value, base))] if base in _FIXED else []
        return ["object", number, base.__name__ if base else "", *content]

    def decode_object(self, number: int, base: str = "", content: Any = None) -> Any:
        return self._kept[number]

    def find(self, name: str) -> Any:
        """A function of this name, or a method of a class (``Solution`` before others) on an object made without arguments."""
        if name in self._space:
            return self._space[name]
        for each in sorted(self._space, key=lambda own: own != "Solution"):
            kind = self._space[each]
            if isinstance(kind, type) and kind.__module__ == "solution" and hasattr(kind, name):
                return getattr(kind(), name)
        raise NameError(f"name {name!r} is not defined")

    @staticmethod
    def content(value: Any) -> Any:
        return _content(value, next(base for base in _CHANGING if isinstance(value, base)))

    def _does(self, verb: str) -> Any:
        if verb in ("find", "content"):
            return getattr(self, verb)
        known = vars(operator).get(verb) or vars(builtins).get(verb.strip("_"))
        return known or (lambda value, *given: getattr(value, verb)(*given))

    def serve(self, pieces: list[str]) -> None:
        """Run pieces of code as the module ``solution``, send what they define, then answer what is asked."""
        module = types.ModuleType("solution")
        sys.modules["solution"], self._space = module, module.__dict__
        for piece in pieces:
            exec(compile(piece, "solution.py", "exec"), self._space)
        self.send({name: self.encode(value) for name, value in list(self._space.items()) if not name.startswith("_")})
        while True:
            verb, sent, named = self.receive()
            given, answer, printed = self.decode(sent), {}, io.StringIO()
            sys.stdout = printed
            try:
                value = self._does(verb)(*given, **self.decode(named))
                if awaited := inspect.iscoroutine(value):
                    value = asyncio.run(value)
                answer["value"] = self.encode(value)
                answer |= {"awaited": True} if awaited else {}
            except BaseException as error:
                answer = {"error": self.encode(type(error)), "object": self.encode(error), "text": str(error)}
                answer["arguments"] = self.encode(error.args)
            changed = self.encode(given)
            self.send({**answer, "printed": printed.getvalue(), **({} if changed == sent else {"changed": changed})})


_VERDICT = re.compile("is|.*with$|count$|r?(find|index)$")
_VERDICTS = set(filter(_VERDICT.match, (name for kind in (str, list, set, float) for name in dir(kind))))


class Linked:
    """What the test holds of an object that is in the tested code's process."""

    def _link(self, line: Judging, number: int, base: type | None = None) -> Any:
        vars(self).update(_line=line, _number=number, _base=base, _class=False, _made=False)
        return self

    def _ask(self, verb: str, *operands: Any, **named: Any) -> Any:
        return vars(self)["_line"].ask(verb, *operands, **named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in ("__name__", "__qualname__", "__annotations__", "__wrapped__"):
            raise AttributeError(name)
        if name in _VERDICTS and not vars(self)["_made"]:  # an answer is not asked whether it is what a test expects
            return getattr(self._ask("content", self) if vars(self)["_base"] else None, name)
        return _answer(self._ask("getattr", self, name))


class Remote(Linked):
    """An object without a content that crosses.

    The test's own values are handed to its operators only where the test has made it, by calling a name that begins with a
    capital letter: ``Vector(1, 2) * 3`` tests that class, while in ``f(1) - 8`` the object would learn what is expected of it.
    """

    def _may(self, other: object) -> bool:
        return isinstance(other, Linked) or bool(vars(self)["_made"])

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        value = self._ask("__call__", self, *arguments, **named)
        if isinstance(value, Remote):
            vars(value)["_made"] = vars(self)["_class"]
        return value

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Linked):
            return self is other or self._ask("__eq__", self, other) is True
        return bool(self._ask("content", self) == other) if vars(self)["_base"] else NotImplemented

    def __contains__(self, value: Any) -> bool:
        if self._may(value):
            return self._ask("__contains__", self, value) is True
        return any(each is value or each == value for each in self)  # type: ignore[attr-defined]

    def __instancecheck__(self, value: Any) -> bool:
        return isinstance(value, Linked) and self._ask("isinstance", value, self) is True

    def __exit__(self, kind: type | None, error: object, trace: object) -> bool:
        known = kind if kind is None or vars(builtins).get(kind.__name__) is kind else Exception
        return self._ask("getattr", self, "__exit__")(known, None, None) is True

    def __mro_entries__(self, bases: object) -> tuple[type, ...]:
        raise Unsupported("a test derives a class from one of the tested code")

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return vars(self)["_base"] or type(self)


def _answer(value: Any) -> Any:
    """What the tested code gave, which is an answer from here on, also where the test has made it."""
    if isinstance(value, Remote):
        vars(value)["_made"] = False
    return value


def _asking(verb: str) -> Any:
    return lambda self, *others: _answer(self._ask(verb, self, *others))


def _operating(verb: str, swapped: bool = False) -> Any:
    def operate(self: Remote, other: Any) -> Any:
        if not self._may(other):
            return NotImplemented
        value = self._ask(verb, *((other, self) if swapped else (self, other)))
        if isinstance(value, Remote):
            vars(value)["_made"] |= vars(self)["_made"]
        return value

    return operate


_ALONE = (
    "bool len iter next hash int float complex round reversed format getitem setitem delitem delattr enter neg pos invert abs "
    "index"
)
_WITH = "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift lt le gt ge"
for _verb in ("repr", "str", "setattr"):
    setattr(Linked, f"__{_verb}__", _asking(f"__{_verb}__"))
for _verb in _ALONE.split():
    setattr(Remote, f"__{_verb}__", _asking(f"__{_verb}__"))
for _verb in _WITH.split():
    setattr(Remote, f"__{_verb}__", _operating(f"__{_verb}__"))
    setattr(Remote, f"__r{_verb}__", _operating(f"__{_verb}__", swapped=True))
_LINKED: dict[str, Any] = {base.__name__: type(f"Linked{base.__name__}", (Linked, base), {}) for base in _FIXED}
_BASES = {base.__name__: base for base in _CHANGING}


class Judging(Line):
    """The end of the judge."""

    def __init__(self, link: socket.socket) -> None:
        super().__init__(link)
        self._known: dict[int, Any] = {}
        self._contents: dict[int, Any] = {}

    def encode_object(self, value: Any) -> Any:
        if isinstance(value, Linked):
            return ["object", vars(value)["_number"]]
        raise Unsupported(f"a test passes {type(value).__name__}, which is no plain data, to the tested code")

    def decode_object(self, number: int, base: str = "", content: Any = None) -> Any:
        if number not in self._known:
            if base == "error":
                name, module, *parents = content
                top = module.partition(".")[0]
                library = top in sys.stdlib_module_names and top != "unittest"  # whose exception skips a test
                made: Any = getattr(sys.modules.get(module), name, None) if library else None
                if not (isinstance(made, type) and issubclass(made, Exception)):
                    own = {"__str__": _text_of, "__getattr__": _attribute_of}
                    made = type(str(name), tuple(map(self.decode, parents)), own)
            elif base in _LINKED:
                made = _LINKED[base].__new__(_LINKED[base], self.decode(content))._link(self, number)
            else:
                made = Remote()._link(self, number, _BASES.get(base))
            self._known[number] = made
        return self._known[number]

    def ask(self, verb: str, *operands: Any, **named: Any) -> Any:
        """Have the tested code do something; what it raises is raised here, as a type of this process."""
        if verb == "content" and (known := self._contents.get(number := vars(operands[0])["_number"], self)) is not self:
            return known  # asked again before anything else was: no answer learns that it was compared
        self.send([verb, self.encode(list(operands)), self.encode(named)])
        answer = self.receive()
        if verb != "content":
            self._contents.clear()
        elif "error" not in answer:
            self._contents[number] = self.decode(answer["value"])
        sys.stdout.write(str(answer["printed"]))
        for given, changed in zip(operands, self.decode(answer.get("changed", ["list"])), strict=False):
            if type(given) is type(changed) and type(given) in _ITEMS and hasattr(given, "clear") and given != changed:
                given.clear()
                (given.extend if hasattr(given, "extend") else given.update)(changed)
        if "error" not in answer:
            value = self.decode(answer["value"])
            return _ready(value) if answer.get("awaited") else value
        kind = self.decode(answer["error"])
        if not issubclass(kind, BaseException) or issubclass(kind, GeneratorExit | StopIteration | StopAsyncIteration):
            kind = StopIteration if verb == "__next__" and kind is StopIteration else RuntimeError  # else a test's loop ends
        arguments = self.decode(answer["arguments"])
        try:
            failure = kind(*arguments)
        except Exception:  # it is made of something else than it holds
            failure = kind.__new__(kind)
            failure.args = arguments
        vars(failure).update(_text=str(answer["text"]), _remote=self.decode(answer["object"]))
        raise failure


async def _ready(value: Any) -> Any:
    """What a coroutine of the tested code has given."""
    return value


def is_remote(error: BaseException) -> bool:
    """Whether an error was raised by the tested code."""
    return "_remote" in vars(error)


def _text_of(error: BaseException) -> str:
    return str(vars(error).get("_text", BaseException.__str__(error)))


def _attribute_of(error: BaseException, name: str) -> Any:
    if name.startswith("_") or not is_remote(error):
        raise AttributeError(name)
    return getattr(vars(error)["_remote"], name)
