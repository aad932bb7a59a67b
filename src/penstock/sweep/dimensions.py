"""What a sweep varies: ranges and choices of fields, as they are written on the command line."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.core.errors import SpecError

Value = float | int | str
Values = Mapping[str, Value]
"""A value for each dimension by name; of choices the text, as the command line has it."""

DECADE = 10.0
"""A positive range whose ends are at least this factor apart is searched on a logarithmic scale."""
_NUMBER = r"[+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?"
_FLAG = re.compile(r"--[^\W\d]")
_RANGE = re.compile(rf"({_NUMBER})\.\.({_NUMBER})")


@dataclass(frozen=True, kw_only=True)
class Dimension:
    """One field of a run and its values: ``choices`` if there are any, else all numbers from ``low`` to ``high``."""

    name: str
    """The field's path: its flag without the dashes."""
    low: float = 0.0
    high: float = 0.0
    whole: bool = False
    """Integers only."""
    choices: tuple[str, ...] = ()

    @property
    def log(self) -> bool:
        """Whether the range is searched on a logarithmic scale."""
        return self.low > 0 and self.high / self.low >= DECADE

    def at(self, share: float) -> Value:
        """The value that far along the dimension, from 0 (the lowest, or the first choice) to 1."""
        if self.choices:
            return self.choices[min(int(share * len(self.choices)), len(self.choices) - 1)]
        value = self.low * (self.high / self.low) ** share if self.log else self.low + (self.high - self.low) * share
        bounded = min(max(value, self.low), self.high)
        return round(bounded) if self.whole else bounded


def dimension(name: str, text: str) -> Dimension | None:
    """What a flag's text sweeps: ``a..b`` a range, ``a,b,c`` choices; None where it is one value.

    A list in brackets, an object in braces and a text in double quotes are one value each; several of them are choices.

    Raises:
        SpecError: a range without a number in it, or choices that repeat.
    """
    if ends := _RANGE.fullmatch(text):
        low, high = (float(end) for end in ends.groups())
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise SpecError(f"--{name} {text}: the range is empty; write LOW..HIGH with LOW below HIGH")
        return Dimension(name=name, low=low, high=high, whole=all(re.fullmatch(r"[+-]?\d+", end) for end in ends.groups()))
    try:
        found = [one if isinstance(one, str) else json.dumps(one) for one in json.loads(f"[{text}]")]
    except ValueError:
        found = [text] if re.search(r'[\[{"]', text) else [part.strip() for part in text.split(",")]
    if len(found) < 2:
        return None
    if len(set(found)) < len(found) or "" in found:
        raise SpecError(f"--{name} {text}: the choices repeat or one is empty; write each once, such as a,b,c")
    return Dimension(name=name, choices=tuple(found))


def split(words: Sequence[str]) -> tuple[list[str], tuple[Dimension, ...]]:
    """The words of a command line that stay as they are, and the dimensions among them.

    Raises:
        SpecError: a dimension is empty, or one is there twice.
    """
    fixed, found, left = list[str](), dict[str, Dimension](), list(words)
    while left:
        word = left.pop(0)
        flag, equals, text = word.partition("=")
        given, name = text if equals else (left or [""])[0], flag[2:].replace("-", "_")
        swept = dimension(name, given) if _FLAG.match(flag) and given and (equals or not _FLAG.match(given)) else None
        if swept is None:
            fixed.append(word)
            continue
        if name in found:
            raise SpecError(f"{flag} is given twice; sweep a field once")
        found[name] = swept
        left = left if equals else left[1:]
    return fixed, tuple(found.values())


def words_of(values: Values) -> list[str]:
    """The flags that set these values."""
    return [f"--{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in values.items()]
