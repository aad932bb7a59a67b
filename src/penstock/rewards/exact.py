"""Rewards by comparison: exact text, contained text, last number, and the own scorers of gym tasks.

All are reward functions of one sample and its row's columns; 1 is right, 0 is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from penstock.core.errors import RewardError

if TYPE_CHECKING:
    from penstock.core.types import Sample

# A minus counts as a sign only where no number, word or bracket is before it: "16-9" holds 16 and 9.
_NUMBER = re.compile(r"(?:(?<![\w)\]])[-−])?(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|(?<![\w.])\.\d+)")


def expected(columns: Mapping[str, Any], column: str) -> str:
    """The expected answer of a row as text.

    Raises:
        RewardError: the row has no such column, or it is null.
    """
    if columns.get(column) is None:
        raise RewardError(
            f'found no value in column "{column}"; name another with options={{"column": …}}, '
            f"columns there are: {', '.join(map(str, columns))}"
        )
    return str(columns[column])


def exact_match(sample: Sample, columns: Mapping[str, Any], *, column: str = "answer", strip: bool = True) -> float:
    """Whether the completion is the expected text; ``strip`` ignores space around both."""
    text, answer = sample.text, expected(columns, column)
    return float(text.strip() == answer.strip() if strip else text == answer)


def contains(sample: Sample, columns: Mapping[str, Any], *, column: str = "answer") -> float:
    """Whether the expected text, space around it ignored, occurs in the completion."""
    answer = expected(columns, column).strip()
    if not answer:
        raise RewardError(f'found an empty answer in column "{column}", which every completion contains')
    return float(answer in sample.text)


def last_number(sample: Sample, columns: Mapping[str, Any], *, column: str = "answer") -> float:
    """Whether the last number of the completion equals the last number of the expected text (as in ``#### 72``)."""
    answer = find_last_number(expected(columns, column))
    if answer is None:
        raise RewardError(f'found no number in column "{column}": {columns[column]!r:.80}')
    return float(find_last_number(sample.text) == answer)


def find_last_number(text: str) -> Decimal | None:
    """The last decimal number in a text, with thousands separators removed; None where there is none."""
    found = _NUMBER.findall(text)
    return Decimal(found[-1].replace(",", "").replace("−", "-")) if found else None


def gym(sample: Sample, columns: Mapping[str, Any]) -> float:
    """The score that the row's own gym task gives the completion, 0 to 1."""
    from penstock.data.gym import gym_score

    if "task" not in columns or "entry" not in columns:
        raise RewardError("found no columns task and entry; the gym reward needs rows of a gym:TASK source")
    return gym_score(columns["task"], sample.text.strip(), columns["entry"])
