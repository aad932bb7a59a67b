"""The task of ``async_gain.py`` and the conditions under which it is learned; no torch.

The task: answer with letters of the prompt, and with no others.

A prompt names four of sixteen letters. The reward is the share of the answer's tokens that are one of them, so it means the
same whatever the length of an answer, which the benchmark imposes. A careless teacher, who is imitated first, takes a letter
of the prompt with chance :data:`CARE` and any letter otherwise; reinforcement has to find out which part of that is good.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from penstock.core.types import Sample, SampleKey

LETTERS = "abcdefghijklmnop"
NAMED = 4
CARE = 0.3
LONGEST = 96
"""Tokens of the longest answer."""


def drawn(size: int, seed: int, answer: int = 0) -> list[dict[str, Any]]:
    """Rows with the columns ``letters`` and ``completion``, the teacher's answer of so many letters."""
    draw = np.random.Generator(np.random.Philox(seed))
    rows = []
    for _ in range(size):
        letters = "".join(draw.permutation(list(LETTERS))[:NAMED])
        careful = draw.random(answer) < CARE
        named, any_one = draw.integers(NAMED, size=answer), draw.integers(len(LETTERS), size=answer)
        written = [letters[n] if well else LETTERS[a] for well, n, a in zip(careful, named, any_one, strict=True)]
        rows.append({"letters": letters, "completion": "".join(written)})
    return rows


def share_named(sample: Sample, columns: dict[str, Any]) -> float:
    """The reward: the share of the tokens that the policy wrote which are letters of the prompt (its first tokens)."""
    return float(np.isin(sample.tokens_T[sample.action_T], sample.tokens_T[:NAMED]).mean())


Lengths = Literal["free", "constant", "uniform", "lognormal"]
SIGMA = 1.0
"""Of lognormal lengths."""
WAIT_SIGMA = 0.5
"""Of lognormal waits."""
LONGEST_WAIT = 4.0
"""Waits are cut at so many times their mean."""


@dataclass(frozen=True)
class Conditions:
    """What is imposed on whoever generates; ``free`` lengths are the policy's own."""

    lengths: Lengths = "free"
    mean: float = 16.0
    """Mean tokens of an answer, before the longest are cut."""
    longest: int = LONGEST
    floor: float = 0.0
    """Least seconds of a decode step: a step on an accelerator whose time is that of reading the weights."""
    seed: int = 0
    wait: float = 0.0
    """Mean seconds that a tool takes between a sample's first and second turn; 0: there is one turn and no tool."""

    def length(self, key: SampleKey) -> int:
        """Tokens of each turn of a sample."""
        draw = self._stream(key, "length")
        if self.lengths == "constant":
            return round(self.mean)
        if self.lengths == "uniform":
            return int(draw.integers(1, 2 * round(self.mean)))
        return int(np.clip(round(draw.lognormal(np.log(self.mean) - SIGMA**2 / 2, SIGMA)), 1, self.longest))

    def waits(self, key: SampleKey) -> float:
        """Seconds that the tool takes for a sample."""
        drawn = self._stream(key, "wait").lognormal(np.log(self.wait) - WAIT_SIGMA**2 / 2, WAIT_SIGMA)
        return float(min(drawn, LONGEST_WAIT * self.wait))

    def _stream(self, key: SampleKey, what: str) -> np.random.Generator:
        """Random numbers that depend on the seed, the sample and what they are for, and on nothing else."""
        words = [self.seed, key.prompt.epoch, key.prompt.ordinal, key.sample, *what.encode()]
        return np.random.Generator(np.random.Philox(np.random.SeedSequence(words)))


async def tool(sample: Sample, columns: dict[str, Any], turn: int, *, wait: float, seed: int) -> str:
    """An environment that takes its time, then says the prompt again."""
    await asyncio.sleep(Conditions(wait=wait, seed=seed).waits(sample.key))
    return f"{columns['letters']}:"
