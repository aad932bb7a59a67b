"""A process reward model as a reward: the probability that each step of a sample is right, per token or as one number."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from penstock.core.contracts import Score, Scorer
from penstock.core.errors import RewardError
from penstock.core.types import Group, Prompt, Row, Sample, Unit
from penstock.rewards.model import ModelReward

Decode = Callable[[Sequence[int]], str]
StepRow = Callable[[Sample, Prompt, Sequence[str]], Row]

WAYS = ("steps", "minimum", "product", "last", "mean")


class StepReward(ModelReward):
    """Scores the steps of the samples of a group; an ``async`` reward function of (group, columns).

    ``decode`` gives the policy's text of tokens, ``row`` what the model reads: a row whose actions follow the steps.
    Options: ``separator`` as in training; ``use``, one of :data:`WAYS`: each step's probability on the step's last token
    (``steps``, for online training), or one number a sample, as for ranking: the least of them, their product, the last,
    their mean. A sample without a step is worth 0.
    """

    def __init__(self, scorer: Scorer, name: str, decode: Decode, row: Callable[[str], StepRow]) -> None:
        super().__init__(scorer, name)
        self._decode = decode
        self._row_with = row
        self._separator = "\n"

    async def __call__(  # type: ignore[override]
        self, group: Group, columns: Mapping[str, Any], *, separator: str = "\n", use: str = "steps"
    ) -> list[Score]:
        """One score a sample, or one per action token. Waits for the model, bounded by the caller's deadline.

        Raises:
            RewardError: an unknown way, a failing model, or a sample that does not fit it.
        """
        if use not in WAYS:
            raise RewardError(f'use="{use}" is unknown; use {", ".join(WAYS)}')
        self._separator = separator
        steps = [steps_of(sample.tokens_T[sample.action_T].tolist(), self._decode, separator) for sample in group.samples]
        found: list[Any] = await super().__call__(group, columns)
        probability = [1 / (1 + np.exp(-np.asarray(score_S, np.float64))) for score_S in found]
        return [
            summary(values_S.tolist(), [end for _, end in found], int(sample.action_T.sum()), use)
            for values_S, found, sample in zip(probability, steps, group.samples, strict=True)
        ]

    def _row(self, sample: Sample, prompt: Prompt) -> Row:
        found = steps_of(sample.tokens_T[sample.action_T].tolist(), self._decode, self._separator)
        return self._row_with(self._separator)(sample, prompt, [text for text, _ in found])

    async def _score(self, units: list[Unit]) -> list[Any]:
        found = await self._threads.run(lambda: self._scorer.score(units, frozenset({"step"})), None)
        return list(found["step"])


def steps_of(tokens: Sequence[int], decode: Decode, separator: str) -> list[tuple[str, int]]:
    """The steps of an answer and the place (0 …) of the token with which each ends; blank steps are passed over.

    A separator closes a step; what follows the last separator is a step too.
    """
    text, found, start = decode(tokens), [], 0
    lengths = range(len(tokens) + 1)
    for piece in text.split(separator):
        end = start + len(piece)
        if piece.strip():
            place = bisect_left(lengths, end, key=lambda count: len(decode(tokens[:count])))
            found.append((piece, min(max(place - 1, 0), len(tokens) - 1)))
        start = end + len(separator)
    return found


def summary(probability_S: Sequence[float], end_S: Sequence[int], actions: int, use: str) -> Score:
    """What is made of a sample's steps: see :class:`StepReward`."""
    values = np.asarray(probability_S, np.float64)
    if len(values) != len(end_S):
        raise RewardError(f"{len(values)} scores for {len(end_S)} steps")
    if use == "steps":
        reward_A = np.zeros(actions)
        np.add.at(reward_A, list(end_S), values)
        return [reward if place in end_S else None for place, reward in enumerate(reward_A.tolist())]
    if not len(values):
        return 0.0
    return float({"minimum": values.min(), "product": values.prod(), "last": values[-1], "mean": values.mean()}[use])
