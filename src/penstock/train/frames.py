"""What the ranks of a learner say to each other over pipes: frames of msgpack, nothing pickled.

A frame is its length in 8 bytes and one value. Values are plain ones, numpy arrays, tuples, frozen sets, and dataclasses and
functions by module and name with their plain fields: both ends are the same program, and a pipe has no third end.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import select
import struct
import time
import types
from typing import Any

import msgpack
import numpy as np

from penstock.core.errors import ConnectionLost, DeadlinePassed, WireError

LENGTH = struct.Struct("<Q")
LARGEST = (1 << 31) - 1
"""Bytes of a frame; a micro-batch or its scores are far below it."""
PART = 1 << 20
"""Bytes read at a time."""

_ARRAY, _TUPLE, _SET, _RECORD, _FUNCTION = range(1, 6)


def encode(value: Any) -> bytes:
    """The bytes of a value. Raises WireError where something in it may not travel."""
    try:
        return bytes(msgpack.packb(value, default=_outward, strict_types=True))
    except (ValueError, TypeError, OverflowError) as cause:
        raise WireError(f"a value cannot travel to a rank: {cause}") from cause


def decode(frame: bytes) -> Any:
    """The value of :func:`encode`; arrays are copies that may be written to."""
    return msgpack.unpackb(frame, ext_hook=_inward, strict_map_key=False)


def _outward(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return msgpack.ExtType(_ARRAY, encode([value.dtype.str, list(value.shape), value.tobytes()]))
    if isinstance(value, np.generic):
        return value.item()
    if type(value) is tuple:
        return msgpack.ExtType(_TUPLE, encode(list(value)))
    if type(value) is frozenset:
        return msgpack.ExtType(_SET, encode(sorted(value)))
    if isinstance(value, types.FunctionType):
        return msgpack.ExtType(_FUNCTION, encode(list(_address(value))))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return msgpack.ExtType(_RECORD, encode([*_address(type(value)), fields]))
    raise TypeError(f"{type(value).__module__}.{type(value).__qualname__}; make it a dataclass of plain values")


def _address(named: Any) -> tuple[str, str]:
    if "<" in named.__qualname__ or named.__module__ == "__main__":
        raise TypeError(f"{named.__module__}.{named.__qualname__} cannot be imported by a rank; define it in a module")
    return named.__module__, named.__qualname__


def _inward(code: int, data: bytes) -> Any:
    value = decode(data)
    if code == _ARRAY:
        kind, shape, content = value
        return np.frombuffer(content, kind).reshape(shape).copy()
    if code == _TUPLE:
        return tuple(value)
    if code == _SET:
        return frozenset(value)
    found: Any = importlib.import_module(value[0])
    for name in value[1].split("."):
        found = getattr(found, name)
    if code == _FUNCTION:
        return found
    made = object.__new__(found)  # as it was: a check of the constructor has seen it before
    for name, held in value[2].items():
        object.__setattr__(made, name, held)
    return made


def write(descriptor: int, value: Any) -> None:
    """Write one value to a pipe. Raises ConnectionLost where nobody reads."""
    content = encode(value)
    if len(content) > LARGEST:
        raise WireError(f"{len(content):,} bytes are above a frame's {LARGEST:,}; lower learner.token_budget")
    view = memoryview(LENGTH.pack(len(content)) + content)
    try:
        while view:
            view = view[os.write(descriptor, view) :]
    except BrokenPipeError as error:
        raise ConnectionLost("the pipe's other end is closed") from error


def read(descriptor: int, seconds: float | None = None) -> Any:
    """Read one value from a pipe.

    Raises:
        ConnectionLost: the other end is closed.
        DeadlinePassed: nothing whole came within ``seconds``.
    """
    until = None if seconds is None else time.monotonic() + seconds
    (length,) = LENGTH.unpack(_exactly(descriptor, LENGTH.size, until))
    return decode(_exactly(descriptor, length, until))


def _exactly(descriptor: int, count: int, until: float | None) -> bytes:
    content = bytearray()
    while len(content) < count:
        if until is not None and not select.select([descriptor], [], [], max(0.0, until - time.monotonic()))[0]:
            raise DeadlinePassed("nothing came in time")
        said = os.read(descriptor, min(PART, count - len(content)))
        if not said:
            raise ConnectionLost("the pipe's other end is closed")
        content += said
    return bytes(content)
