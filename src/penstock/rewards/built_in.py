"""Rewards that a spec names without saying where they are: by comparison with an expected answer, of a gym task, of an
environment, of a length, of a picture.

All are reward functions of one sample and its row's columns. What is compared is the completion's answer, without its thought
(:func:`~penstock.rewards.answers.answer_of`); 1 is right, 0 is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.algos.denoising import picture_of
from penstock.core.errors import RewardError
from penstock.data.pictures import file_of
from penstock.rewards.answers import Answer, answer_of, expected, read_number, stated

if TYPE_CHECKING:
    from penstock.core.contracts import RewardFunction
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
    numbers = [_decimal(found) for found in _NUMBER.findall(said)]
    right = _short(columns, column, "contains")
    return float(any(one in numbers if isinstance(one, Decimal) else one.strip() in said for one in right))


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


def _decimal(text: str) -> Decimal:
    return Decimal(text.replace(",", "").replace("−", "-"))


def gym(sample: Sample, columns: Mapping[str, Any]) -> float:
    """The score that the row's own gym task gives the completion, 0 to 1."""
    from penstock.data.gym import gym_score

    if "task" not in columns or "entry" not in columns:
        raise RewardError("found no columns task and entry; the gym reward needs rows of a gym:TASK source")
    return gym_score(columns["task"], answer_of(sample).strip(), columns["entry"])


def environment(sample: Sample, columns: Mapping[str, Any]) -> list[float | None] | None:
    """Each turn's reward on the turn's last action, where a step ends (``GRPO(supervision="process")``); 0 for one without.

    None where the environment rewarded no turn. What a turn earned that is not trained on (``history="mask"``) counts for the
    first action that is.

    Raises:
        RewardError: the stage has no environment of several turns.
    """
    turns = sample.extras.get("turns")
    if turns is None:
        raise RewardError("found no turns; set the stage's environment, or leave the reward environment out")
    actions = int(sample.action_T.sum())
    if not actions or all(reward is None for _, _, reward, _ in turns):
        return None
    found: list[float | None] = [None] * actions
    place_T = np.cumsum(sample.action_T) - 1
    for _, end, reward, _ in turns:
        place = max(0, int(place_T[end - 1]))
        found[place] = (found[place] or 0.0) + (reward or 0.0)
    return found


def overlong(sample: Sample, columns: Mapping[str, Any], *, longest: int, buffer: int) -> float:
    """Soft punishment of overlong answers (DAPO: Yu et al. 2025, arXiv 2503.14476, eq. 13).

    0 up to ``longest - buffer`` action tokens, then a line down to -1 at ``longest``, and -1 beyond. Added to the reward of
    the task, with the weight that -1 is to have.

    Raises:
        RewardError: a buffer that is not within 1 … ``longest``.
    """
    if not 0 < buffer <= longest:
        raise RewardError(f"overlong needs 0 < buffer <= longest, got buffer={buffer} and longest={longest}")
    excess = int(sample.action_T.sum()) - (longest - buffer)
    return -min(max(excess / buffer, 0.0), 1.0)


def compressible(sample: Sample, columns: Mapping[str, Any], *, quality: int = 95) -> float:
    """Minus the bytes of the picture as a JPEG (DDPO: Black et al. 2023, arXiv 2305.13301, 5.1; with ``weight=-1`` it is the
    paper's incompressibility). The header counts too, and is the same for all pictures."""
    return -float(len(file_of(picture_of(sample), "the reward compressible", "JPEG", quality=quality)))


_FUNCTIONS = (exact_match, contains, last_number, gym, overlong, compressible, environment)
BUILT_IN: Mapping[str, RewardFunction] = {function.__name__: function for function in _FUNCTIONS}
