"""Reads a JSON object field by field; what nobody has read in the end is refused, never ignored."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from typing import Any

from penstock.core.messages import strict_json
from penstock.web.refusals import Refusal

LARGEST = sys.float_info.max
"""The largest number that a float holds."""
JSON_NAMES: dict[type, str] = {
    type(None): "null", bool: "boolean", int: "number", float: "number", str: "string", list: "array",
}  # fmt: skip
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
"""How JSON writes half of a character; two of them are a whole one."""


def object_of(body: bytes | bytearray) -> dict[str, Any]:
    """The JSON object in a request's body. Raises Refusal if there is none."""
    try:
        text = body.decode()
        value = strict_json(text, parse_float=_finite)
        if _SURROGATE.search(text):  # half a character can be neither encoded again nor turned into tokens
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"the body is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise Refusal(400, f"the body is a JSON {JSON_NAMES[type(value)]}; send an object")
    return value


def _finite(digits: str) -> float:
    value = float(digits)
    if abs(value) > LARGEST:
        raise ValueError(f"{digits[:20]} is larger than any number here")
    return value


class Fields:
    """The fields of one object, which is ``where`` in a body. A null stands for a field that is not there."""

    def __init__(self, values: dict[str, Any], where: str = "") -> None:
        self.where, self._at = where, where and f"{where}."
        self._values = {name: value for name, value in values.items() if value is not None}

    def take(self, name: str, default: Any = None) -> Any:
        return self._values.pop(name, default)

    def has(self, name: str) -> bool:
        return name in self._values

    def rest(self) -> dict[str, Any]:
        """What has not been read, for another reader."""
        left, self._values = self._values, {}
        return left

    def _refused(self, name: str, value: Any, wanted: str) -> Refusal:
        return Refusal(400, f"{self._at}{name}={shown(value)}; give {wanted}", param=self._at + name)

    def number(self, name: str, default: float, low: float = -LARGEST, high: float = LARGEST) -> float:
        """A number from ``low`` to ``high``."""
        value = self.take(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise self._refused(name, value, f"a number {_range(low, high)}")
        return float(value)

    def whole(self, name: str, default: int, low: int, high: int = (1 << 63) - 1) -> int:
        """A whole number from ``low`` to ``high``."""
        value = self.take(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self._refused(name, value, f"a whole number {_range(low, high)}")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.take(name, default)
        if not isinstance(value, bool):
            raise self._refused(name, value, "true or false")
        return value

    def text(self, name: str, default: str | None = None, one_of: Sequence[str] = ()) -> str:
        """A text, one of ``one_of`` if they are given; without a default it must be there."""
        value = self.take(name, default)
        if not isinstance(value, str) or (one_of and value not in one_of):
            raise self._refused(name, value, f"one of {', '.join(one_of)}" if one_of else "a text")
        return value

    def texts(self, name: str, most: int) -> tuple[str, ...]:
        """A text or a list of at most ``most``; none of them empty."""
        value = self.take(name, [])
        found = [value] if isinstance(value, str) else value
        if not isinstance(found, list) or not all(isinstance(one, str) and one for one in found) or len(found) > most:
            raise self._refused(name, value, f"a text, or a list of at most {most}, none empty")
        return tuple(found)

    def object(self, name: str) -> dict[str, Any]:
        value = self.take(name, {})
        if not isinstance(value, dict):
            raise self._refused(name, value, "an object")
        return value

    def objects(self, name: str) -> list[Fields]:
        """A list of objects; none where it is not there."""
        value = self.take(name, [])
        if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
            raise self._refused(name, value, "a list of objects")
        return [Fields(one, f"{self._at}{name}[{at}]") for at, one in enumerate(value)]

    def neutral(self, name: str, *values: Any) -> None:
        """A field that has no effect here: only the values that mean so may be given."""
        given = self.take(name)
        if given is not None and given not in values:
            allowed = f"leave it out, or give {' or '.join(shown(value) for value in values)}" if values else "leave it out"
            said = f"{self._at}{name} is not supported here; {allowed}"
            raise Refusal(400, said, param=self._at + name, code="unsupported_parameter")

    def done(self) -> None:
        """Refuse what has not been read."""
        for name in self._values:
            place = self._at + name[:100]
            raise Refusal(400, f'unknown field "{place}"', param=place, code="unknown_parameter")


def shown(value: Any) -> str:
    """A value as an error may quote it, cut to 60 characters."""
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _range(low: float, high: float) -> str:
    if high >= (1 << 62):
        return f"of at least {low:g}" if low > -LARGEST else ""
    return f"from {low:g} to {high:g}"
