"""A reward model as a reward: the scalar score that a frozen model gives a whole sample."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from penstock.core.contracts import Scorer
from penstock.core.errors import RewardError
from penstock.core.types import Group, IntArray, Prompt, Row, Sample, Unit
from penstock.rewards.threads import Threads

Prepare = Callable[[Sample, Prompt], IntArray]


def same_tokens(sample: Sample, prompt: Prompt) -> IntArray:
    """The sample's own tokens, for a reward model that shares the policy's tokenizer."""
    return sample.tokens_T


class ModelReward:
    """Scores the samples of a group with a frozen model; an ``async`` reward function of (group, columns).

    ``prepare`` gives the tokens that the model reads: :func:`same_tokens`, or the prompt and the text tokenized anew where
    the vocabularies differ. Groups that come in the same turn of the event loop are scored in one call, in a thread of its own;
    samples of a group are one unit, so that the scorer may share their prompt. Who comes while the thread is busy is not
    added to a later call: a score depends in its last bits on what else is in the batch, which must not depend on the clock.
    """

    def __init__(self, scorer: Scorer, name: str, prepare: Prepare = same_tokens) -> None:
        self.name = name
        self._scorer = scorer
        self._prepare = prepare
        self._waiting: list[tuple[Unit, asyncio.Future[list[float]]]] = []
        self._calls: set[asyncio.Task[None]] = set()
        self._threads = Threads(f"reward model {name}", size=1)

    async def __call__(self, group: Group, columns: Mapping[str, Any]) -> list[float]:
        """One score a sample. Waits for the model; unblocked when its call returns, bounded by the caller's deadline.

        Raises:
            RewardError: nothing to read, a failing model, or another number of scores than samples.
        """
        unit = tuple(self._row(sample, group.prompt) for sample in group.samples)
        answer: asyncio.Future[list[float]] = asyncio.get_running_loop().create_future()
        self._waiting.append((unit, answer))
        if len(self._waiting) == 1:
            call = asyncio.create_task(self._work())
            self._calls.add(call)  # the loop itself keeps no task alive
            call.add_done_callback(self._calls.discard)
        return await answer

    def _row(self, sample: Sample, prompt: Prompt) -> Row:
        tokens_T = np.asarray(self._prepare(sample, prompt), np.int32)
        if len(tokens_T) == 0:
            raise RewardError(f"model {self.name} has no tokens to read")
        return Row({"tokens_T": tokens_T}, np.zeros(len(tokens_T), np.bool_))

    async def _work(self) -> None:
        """Score the groups of one turn of the loop."""
        try:
            await asyncio.sleep(0)
        finally:  # also when cancelled: the next group must find nobody waiting
            asked = [(unit, answer) for unit, answer in self._waiting if not answer.done()]
            self._waiting.clear()
        if not asked:
            return
        try:
            scores = await self._score([unit for unit, _ in asked])
        except Exception as error:
            self._refuse(asked, error)
            return
        for unit, answer in asked:
            given, scores = scores[: len(unit)], scores[len(unit) :]
            if not answer.done():
                answer.set_result(given)

    async def _score(self, units: list[Unit]) -> list[float]:
        found = await self._threads.run(lambda: self._scorer.score(units, frozenset({"score"})), None)
        scores = [float(score) for score in found["score"]]
        rows = sum(len(unit) for unit in units)
        if len(scores) != rows:
            raise RewardError(f"model {self.name} gave {len(scores)} scores for {rows} samples")
        return scores

    @staticmethod
    def _refuse(asked: list[tuple[Unit, asyncio.Future[list[float]]]], error: Exception) -> None:
        for _, answer in asked:
            if not answer.done():
                answer.set_exception(RewardError(f"{type(error).__name__}: {error}"))

    def close(self) -> None:
        """End the scoring thread once it is idle."""
        self._threads.close()
