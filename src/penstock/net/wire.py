"""Values as frames: a msgpack header that holds structure and numbers, then the raw bytes of the arrays.

A frame is ``magic, version, header length, body length`` (16 bytes), the header, the body. The header is one value; each
array in it names its dtype and shape, and its bytes are the next ones of the body, aligned to their item size. Nothing is
pickled: a class travels only if it was registered, and by its name. A frame without header and body is a heartbeat.

What travels: None, bool, int, float, str, bytes, list, tuple, frozenset of plain values, dict, numpy arrays of the dtypes in
:data:`DTYPES`, and the registered nouns of :mod:`penstock.core.types`. All come back equal and of the same type, except that
numpy scalars become numbers and a bytearray or memoryview becomes bytes. Between a learner and its ranks, which are one
program, ``importable`` dataclasses and functions travel as well, by module and name with their plain fields.
"""

from __future__ import annotations

import functools
import importlib
import math
import operator
import struct
import sys
import types
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import msgpack
import numpy as np

from penstock.core.blobs import Blob
from penstock.core.errors import WireError
from penstock.core.types import (
    GeneratorStats,
    Group,
    Prompt,
    PromptKey,
    Request,
    Row,
    Sample,
    SampleKey,
    Sampling,
)
from penstock.net.group_table import group_of, table_of

MAX_HEADER = 1 << 28
"""Bytes of a header: numbers, texts and bytes of one group. What holds many groups sends each in a frame of its own."""

MAX_BODY = 1 << 34
"""Bytes of a body: arrays of one group. Strangers are not read that far, see :mod:`penstock.net.link`."""

PRELUDE = struct.Struct("<4sIQ")
"""Magic with version, header length, body length."""

MAGIC = b"PEN\x01"

DTYPES = ("|b1", "|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8")
"""Dtypes that travel, as numpy spells them. Append only: a frame names a dtype by its place."""

SMALL = 1 << 16
"""Arrays below it are copied together; larger ones are sent from where they lie."""

Buffer = bytes | bytearray | memoryview
Noun = TypeVar("Noun", bound=type)

_TUPLE, _NOUN, _ARRAY, _INTEGER, _SET, _RECORD, _FUNCTION, _EMPTY = range(1, 9)  # codes of msgpack extension types
_DTYPES = tuple(np.dtype(name) for name in DTYPES)
_CODE = {name: code for code, name in enumerate(DTYPES)}
_TUPLE_MARK, _EMPTY_TUPLE = msgpack.ExtType(_TUPLE, b""), msgpack.ExtType(_EMPTY, b"")
_PADDING = bytes(8)


class _Mark:
    """First element of a list that stands for a tuple or for a noun; no value that travels is one."""

    __slots__ = ("arity", "build", "name")

    def __init__(self, name: str, build: Callable[..., Any], arity: int | None) -> None:
        self.name, self.build, self.arity = name, build, arity


_TUPLES = _Mark("tuple", lambda *items: items, None)
_marks: dict[bytes, _Mark] = {}  # by name on the wire
_nouns: dict[type, tuple[Any, Callable[[Any], tuple[Any, ...]]]] = {}  # class -> extension, fields of an instance


def register(
    noun: Noun, parts: Callable[[Any], tuple[Any, ...]] | None = None, build: Callable[..., Any] | None = None
) -> Noun:
    """Let a dataclass or a named tuple travel, by its class name; usable as a decorator. Both ends must register it.

    It travels as its fields, or as the ``parts`` of which ``build`` makes it again.

    Raises:
        WireError: it is neither, a field is no argument of it, or another class of that name is registered.
    """
    name = noun.__name__
    if is_dataclass(noun):
        if not all(field.init for field in fields(noun)):
            raise WireError(f"{name} cannot travel: a field of it is no argument of its constructor")
        names = [field.name for field in fields(noun)]
        get = operator.attrgetter(*names) if len(names) > 1 else lambda value: tuple(getattr(value, n) for n in names)
    elif issubclass(noun, tuple) and hasattr(noun, "_fields"):
        names, get = list(noun._fields), tuple
    else:
        raise WireError(f"{name} cannot travel: only dataclasses and named tuples can be registered")
    code = name.encode()
    if code in _marks and noun not in _nouns:
        raise WireError(f"two classes named {name} cannot travel; rename one")
    _marks[code] = _Mark(name, build or noun, None if build else len(names))
    _nouns[noun] = (msgpack.ExtType(_NOUN, code), parts or get)
    return noun


for _noun in (Blob, PromptKey, SampleKey, Prompt, Sampling, Sample, Request, Row, GeneratorStats):
    register(_noun)
register(Group, table_of, group_of)


HEARTBEAT = PRELUDE.pack(MAGIC, 0, 0)
"""The frame that holds no value."""


def pack(value: Any, importable: bool = False) -> list[Buffer]:
    """A value as the buffers of one frame. Large arrays are not copied: leave them alone until the frame was sent.

    Raises:
        WireError: something in it may not travel, or it is larger than a frame may be.
    """
    writer = _Writer(importable)
    try:
        header = msgpack.packb(value, default=writer.default, strict_types=True, unicode_errors="surrogatepass")
    except (ValueError, TypeError, OverflowError, RecursionError) as cause:
        raise WireError(f"a value cannot travel: {cause}") from cause
    if len(header) > MAX_HEADER:
        raise WireError(f"a header of {len(header)} bytes is above {MAX_HEADER}; send bytes and long lists as numpy arrays")
    return [PRELUDE.pack(MAGIC, len(header), writer.length) + header, *writer.buffers, writer.tail]


def lengths(prelude: Buffer, peer: str, max_header: int = MAX_HEADER, max_body: int = MAX_BODY) -> tuple[int, int]:
    """(header length, body length) in bytes, as a prelude announces them; ``peer`` is who sent it, for the error."""
    if len(prelude) != PRELUDE.size:
        raise WireError(f"{peer} sent {len(prelude)} bytes where a frame begins with {PRELUDE.size}")
    magic, header, body = PRELUDE.unpack(prelude)
    if magic != MAGIC:
        raise WireError(f"{peer} sent something that is no frame of this version of Penstock")
    if header > max_header or body > max_body:
        raise WireError(f"{peer} announced {header} + {body} bytes; at most {max_header} + {max_body} are read")
    return header, body


def unpack(header: Buffer, body: Buffer, peer: str, importable: bool = False) -> Any:
    """The value of a frame. Its arrays are views of ``body``, writable where that is.

    Raises:
        WireError: the bytes are no frame; names ``peer``, who sent it.
    """
    reader = _Reader(body, importable)
    try:
        value = msgpack.unpackb(
            header,
            ext_hook=reader.extension,
            list_hook=reader.list,
            strict_map_key=False,
            timestamp=1,
            unicode_errors="surrogatepass",
        )
        reader.check_end()
    except Exception as cause:  # whatever bytes do to the parser or to a constructor, they were not a frame
        raise WireError(f"{peer} sent a frame that cannot be read: {type(cause).__name__}: {cause}") from cause
    return value


class _Writer:
    """Turns what msgpack does not know into marked lists and extensions, and collects the body."""

    def __init__(self, importable: bool) -> None:
        self.importable = importable
        self.buffers: list[Buffer] = []
        self.tail = bytearray()  # small arrays since the last large one
        self.length = 0

    def default(self, value: Any) -> Any:
        kind = type(value)
        if kind is not np.ndarray:
            return self.other(value, kind)
        described, item = _describe(value.dtype, value.shape)
        if padding := -self.length % item:
            self.tail += _PADDING[:padding]
        size = value.nbytes
        self.length += padding + size
        if self.length > MAX_BODY:
            raise WireError(f"arrays of {self.length} bytes are above {MAX_BODY}; send them in several messages")
        if size < SMALL:
            self.tail += value.tobytes()
        else:
            self.buffers += [self.tail, np.ascontiguousarray(value).data.cast("B")]
            self.tail = bytearray()
        return described

    def other(self, value: Any, kind: type) -> Any:
        if kind is tuple:
            return [_TUPLE_MARK, *value] if value else _EMPTY_TUPLE
        if kind in _nouns:
            mark, get = _nouns[kind]
            return [mark, *get(value)]
        if kind is frozenset:
            return msgpack.ExtType(_SET, msgpack.packb(sorted(value)))
        if kind is int:  # beyond 64 bits
            return msgpack.ExtType(_INTEGER, value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))
        if isinstance(value, np.generic) and type(plain := value.item()) in (bool, int, float, str, bytes):
            return plain
        if self.importable and kind is types.FunctionType:
            return msgpack.ExtType(_FUNCTION, _address(value))
        if self.importable and is_dataclass(value):
            held = {field.name: getattr(value, field.name) for field in fields(value)}
            return [msgpack.ExtType(_RECORD, _address(kind)), held]
        raise WireError(
            f"{kind.__module__}.{kind.__qualname__} cannot travel between processes; "
            "make it a plain value, a numpy array or a registered noun"
        )


class _Reader:
    """The writer's reverse. Every claim is checked against the bytes that are there."""

    def __init__(self, body: Buffer, importable: bool) -> None:
        self.body, self.offset, self.open, self.importable = body, 0, 0, importable

    def extension(self, code: int, data: bytes) -> Any:
        if code == _ARRAY:
            dtype, shape, item, size = _described(data)
            offset = self.offset + -self.offset % item
            self.offset = offset + size
            return np.ndarray(shape, dtype, self.body, offset) if size else np.empty(shape, dtype)
        mark = _marks.get(data) if code == _NOUN else _TUPLES if code == _TUPLE else None
        if code == _RECORD and self.importable:
            mark = _Mark(data.decode(), functools.partial(_record, _imported(data)), 1)
        if mark is None:
            return self.value(code, data)
        self.open += 1
        return mark

    def value(self, code: int, data: bytes) -> Any:
        if code == _EMPTY:
            return ()
        if code == _INTEGER:
            return int.from_bytes(data, "little", signed=True)
        if code == _SET:
            return frozenset(msgpack.unpackb(data))
        if code == _FUNCTION and self.importable:
            return _imported(data)
        raise ValueError(f"nothing is registered as {data[:40]!r} of kind {code}")

    def list(self, items: list[Any]) -> Any:
        if not items or type(items[0]) is not _Mark:
            return items
        mark = items.pop(0)
        if mark.arity is not None and len(items) != mark.arity:
            raise ValueError(f"{mark.name} has {mark.arity} fields, not {len(items)}")
        self.open -= 1
        return mark.build(*items)

    def check_end(self) -> None:
        if self.open:
            raise ValueError("a mark of a tuple or noun stands where none may")
        if self.offset != len(self.body):
            raise ValueError(f"its arrays take {self.offset} bytes of a body of {len(self.body)}")


def _address(named: Any) -> bytes:
    if "<" in named.__qualname__ or named.__module__ == "__main__":
        raise WireError(f"{named.__module__}.{named.__qualname__} cannot be imported by a rank; define it in a module")
    return f"{named.__module__}:{named.__qualname__}".encode()


def _imported(address: bytes) -> Any:
    """A dataclass or function where it is defined. Nothing of the standard library is, so that a frame runs no command."""
    module, _, name = address.decode().partition(":")
    if module.partition(".")[0] in sys.stdlib_module_names:
        raise ValueError(f"{module} is no module of the program")
    found = operator.attrgetter(name)(importlib.import_module(module))
    if not (is_dataclass(found) or type(found) is types.FunctionType) or found.__module__ != module:
        raise ValueError(f"{name} of {module} is no dataclass or function that is defined there")
    return found


def _record(kind: type, values: dict[str, Any]) -> Any:
    """A dataclass as it was: the checks of its constructor have seen it before."""
    if not is_dataclass(kind):
        raise ValueError(f"{kind} is no dataclass")
    made = object.__new__(kind)
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made


# The same few dtypes and shapes come thousands of times a second, hence the caches.


@functools.lru_cache(4096)
def _describe(dtype: np.dtype, shape: tuple[int, ...]) -> tuple[Any, int]:
    """What the header says of an array, and its item size. Raises WireError for a dtype that does not travel."""
    code = _CODE.get(dtype.str)
    if code is None:
        raise WireError(f"an array of dtype {dtype} cannot travel; convert it to one of {', '.join(DTYPES)}")
    return msgpack.ExtType(_ARRAY, struct.pack(f"<B{len(shape)}Q", code, *shape)), dtype.itemsize


@functools.lru_cache(4096)
def _described(data: bytes) -> tuple[np.dtype, tuple[int, ...], int, int]:
    """Dtype, shape, item size and size in bytes of an array, from what the header says of it."""
    dtype = _DTYPES[data[0]]
    shape = struct.unpack(f"<{len(data) // 8}Q", data[1:])
    return dtype, shape, dtype.itemsize, math.prod(shape) * dtype.itemsize
