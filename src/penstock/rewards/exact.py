"""Rewards by comparison: exact text, contained text, last number, and the own scorers of gym tasks.

All are reward functions of one sample and its row's columns; 1 is right, 0 is wrong. What is compared is the completion's
answer, without its thought (:func:`~penstock.rewards.answers.answer_of`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from penstock.core.errors import RewardError
from penstock.rewards.answers import Answer, answer_of, expected, read_number, stated

if TYPE_CHECKING:
    from penstock.core.types import Sample

# A minus counts as a sign only where no number, word or bracket is before it: "16-9" holds 16 and 9.
_NUMBER = re.compile(r"(?:(?<![\w)\]])[-−])?(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|(?<![\w.])\.\d+)")
_PART = re.compile(r"(?:[\w)}]\s?/\s?|[\^_]\s?\{?|\d:|\}\s?\{|\\frac\s?\d?|\d[eE][-+]?)$")
"""What precedes a part of a number, such as that of ``1/2``, ``10^{100}``, ``\\frac{1}{2}``, ``12:30`` or ``1e5``."""


def exact_match(sample: Sample, columns: Mapping[str, Any], *, column: str = "answer", strip: bool = True) -> float:
    """Whether the answer is the expected text, or one of them, or its number; ``strip`` ignores space around both."""
    said, right = answer_of(sample), _short(columns, column, "exact_match")
    texts = [one for one in right if isinstance(one, str)]
    return float(read_number(said.strip()) in right or (said.strip() in map(str.strip, texts) if strip else said in texts))


def contains(sample: Sample, columns: Mapping[str, Any], *, column: str = "answer") -> float:
    """Whether the expected text, space around it ignored, or one of them occurs in the answer; a number as a whole number."""
    said = answer_of(sample)
    right = _short(columns, column, "contains")
    return float(any(one in _numbers(said) if isinstance(one, Decimal) else one.strip() in said for one in right))


def last_number(sample: Sample, columns: Mapping[str, Any], *, column: str = "answer") -> float:
    """Whether the answer's last number equals that of the expected text (of ``#### 72``, of a last box) or of one of them."""
    right = [one if isinstance(one, Decimal) else find_last_number(stated(one)) for one in expected(columns, column)]
    if None in right:
        raise RewardError(f'found no number in column "{column}": {columns[column]!r:.80}; use math for other answers')
    return float(find_last_number(answer_of(sample)) in right)


def _short(columns: Mapping[str, Any], column: str, name: str) -> list[Answer]:
    """The expected answers. Raises RewardError for a worked solution (GSM8K's, MATH's), which no completion repeats."""
    right = expected(columns, column)
    for one in right:
        if isinstance(one, str) and stated(one) != one and len(one.split()) > 1:
            raise RewardError(
                f'column "{column}" holds a worked solution, which ends in {stated(one)[:40]!r}; {name} compares all of it: '
                "use last_number or math, which read its end, or a column with the answer alone"
            )
    return right


def find_last_number(text: str) -> Decimal | None:
    """The last decimal number in a text, with thousands separators removed; None where there is none, or where it is part of
    another one: a fraction, a power, a time of day."""
    found = list(_NUMBER.finditer(text))
    if not found or _PART.search(text[: found[-1].start()]) or re.match(r"\s?\^|/\s?[a-z](?![a-z])", text[found[-1].end() :]):
        return None
    return _decimal(found[-1][0])


def _numbers(text: str) -> list[Decimal]:
    return [_decimal(found) for found in _NUMBER.findall(text)]


def _decimal(text: str) -> Decimal:
    return Decimal(text.replace(",", "").replace("−", "-"))


def gym(sample: Sample, columns: Mapping[str, Any]) -> float:
    """The score that the row's own gym task gives the completion, 0 to 1."""
    from penstock.data.gym import gym_score

    if "task" not in columns or "entry" not in columns:
        raise RewardError("found no columns task and entry; the gym reward needs rows of a gym:TASK source")
    return gym_score(columns["task"], answer_of(sample).strip(), columns["entry"])
