"""Reward models as rewards: the score that a frozen model gives a whole sample, or the probabilities that a process reward
model gives its steps."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from penstock.algos.completions import completed
from penstock.core.contracts import Score, Scorer
from penstock.core.errors import RewardError
from penstock.core.messages import Message, assistant
from penstock.core.types import PART, Group, IntArray, Prompt, Row, Sample, Unit
from penstock.data.texts import answer_text, arguments_of, prompt_text, reader
from penstock.models.text import PROBE, Text
from penstock.sandbox.threads import Threads

Prepare = Callable[[Sample, Prompt], IntArray]
Decode = Callable[[Sequence[int]], str]
StepRow = Callable[[Sample, Prompt, Sequence[str]], Row]

COMBINED = ("mean", "minimum", "mean_minus_std")
"""What is made of the scores of several models."""
WAYS = ("steps", "minimum", "product", "last", "mean")
"""What is made of the probabilities of a sample's steps."""


def read_by(own: Text, policy: Text, context: int) -> Prepare:
    """What a reward model with the tokenizer ``own`` reads of a policy's samples: the last ``context`` tokens at most.

    The sample's own tokens where both tokenizers, and in chat both templates, are equal (or it has no template of its own); a
    sample that was cut at its longest length is closed with an end token, where the model was trained to be read. Else its own
    rendering of the conversation, every turn of it.
    """
    same = own.tokenizer.get_vocab() == policy.tokenizer.get_vocab() and own.before == policy.before
    same_chat = own.tokenizer.chat_template in (None, policy.tokenizer.chat_template)

    def prepare(sample: Sample, prompt: Prompt) -> IntArray:
        alike = same and (same_chat or not prompt.messages)
        said_T = sample.tokens_T
        if PART in sample.columns and not alike:
            raise RewardError(
                f"{sample.key} was rendered anew; a reward model with another tokenizer or template cannot read it"
            )
        if PART in sample.columns:  # of several sequences the last holds the whole conversation
            said_T = said_T[sample.columns[PART] == sample.columns[PART][-1]]
        if alike and len(said_T) and int(said_T[-1]) in own.ends:
            return said_T[-context:]
        if alike and own.tokenizer.chat_template is None:
            return np.append(said_T, own.end)[-context:]
        *earlier, last = [assistant(sample.raw_text)] if alike else turns_of(sample, prompt, policy)
        known = replace(prompt, text=prompt.text + "".join(turn["content"] for turn in earlier))
        known = replace(known, messages=(*prompt.messages, *earlier)) if prompt.messages else known
        texts = {"prompt": prompt_text(known, own), "completion": answer_text(known, last, own)}
        tokens_T, _ = completed(texts, "completion", reader(known, own))
        return (np.append(said_T, tokens_T[-1]) if alike else tokens_T)[-context:]

    return prepare


def turns_of(sample: Sample, prompt: Prompt, policy: Text) -> list[Message]:
    """What was said after the prompt: the policy's turns as the assistant's, those of an environment as the user's."""
    edges = 1 + np.flatnonzero(np.diff(sample.action_T.astype(np.int8)))
    said: list[Message] = []
    for piece in np.split(sample.tokens_T, edges)[1:]:
        if len(said) % 2 == 0:
            said.append(assistant(policy.raw(piece.tolist())))
        else:
            said.append({"role": "user", "content": _spoken(piece.tolist(), [*prompt.messages, *said], prompt, policy)})
    return [*said[:-1], assistant(sample.raw_text)]


def _spoken(tokens: list[int], said: list[Message], prompt: Prompt, policy: Text) -> str:
    """The text of an environment's turn, without what the policy's chat template writes around a user's turn."""
    text = policy.tokenizer.decode(tokens)
    if not prompt.messages:
        return text
    asked = policy.render_chat([*said, {"role": "user", "content": PROBE}], arguments_of(prompt))
    before, _, after = asked.rpartition(PROBE)
    text = text.removesuffix(after)
    begun = max(n for n in range(min(len(before), len(text)) + 1) if before.endswith(text[:n]))
    return policy.decode(policy.encode(text[begun:]))


class ModelReward:
    """Scores the samples of a group with a frozen model; an ``async`` reward function of (group, columns).

    ``prepare`` gives the tokens that the model reads (:func:`read_by`), else they are the sample's own. Groups that come in the
    same turn of the event loop are scored in one call, in a thread of its own; samples of a group are one unit, so that the
    scorer may share their prompt. Who comes while the thread is busy is not added to a later call: a score depends in its last
    bits on what else is in the batch, which must not depend on the clock.
    """

    _output: ClassVar[str] = "score"
    """The model's output that is asked for."""

    def __init__(self, scorer: Scorer, name: str, prepare: Prepare = lambda sample, prompt: sample.tokens_T) -> None:
        self.name = name
        self._scorer = scorer
        self._prepare = prepare
        self._waiting: list[tuple[Unit, asyncio.Future[list[Any]]]] = []
        self._calls: set[asyncio.Task[None]] = set()
        self._threads = Threads(f"reward model {name}", size=1)

    async def __call__(self, group: Group, columns: Mapping[str, Any]) -> list[Any]:
        """One score a sample. Waits for the model; unblocked when its call returns, bounded by the caller's deadline.

        Raises:
            RewardError: nothing to read, a failing model, or another number of scores than samples.
        """
        read = [np.asarray(self._prepare(sample, group.prompt), np.int32) for sample in group.samples]
        if not all(map(len, read)):
            raise RewardError(f"model {self.name} has no tokens to read")
        unit = tuple(Row({"tokens_T": tokens_T}, np.zeros(len(tokens_T), np.bool_)) for tokens_T in read)
        return [float(score) for score in await self._scores(unit)]

    async def _scores(self, unit: Unit) -> list[Any]:
        """The model's output for each row of a unit."""
        answer: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._waiting.append((unit, answer))
        if len(self._waiting) == 1:
            call = asyncio.create_task(self._work())
            self._calls.add(call)  # the loop itself keeps no task alive
            call.add_done_callback(self._calls.discard)
        return await answer

    async def _work(self) -> None:
        """Score the units of one turn of the loop."""
        try:
            await asyncio.sleep(0)
        finally:  # also when cancelled: the next group must find nobody waiting
            asked = [(unit, answer) for unit, answer in self._waiting if not answer.done()]
            self._waiting.clear()
        units, failure, scores = [unit for unit, _ in asked], None, []
        try:
            if units:
                found = await self._threads.run(lambda: self._scorer.score(units, frozenset({self._output})), None)
                scores = list(found[self._output])
            if len(scores) != sum(map(len, units)):
                raise RewardError(f"model {self.name} gave {len(scores)} scores for {sum(map(len, units))} samples")
        except Exception as error:
            failure = RewardError(f"{type(error).__name__}: {error}")
        for unit, answer in asked:
            given, scores = scores[: len(unit)], scores[len(unit) :]
            if answer.done():
                continue
            if failure is None:
                answer.set_result(given)
            else:
                answer.set_exception(failure)

    def close(self) -> None:
        """End the scoring thread once it is idle."""
        self._threads.close()


def combined(score_MG: ArrayLike, combine: str, penalty: float = 1.0) -> list[float]:
    """One score a sample from those of ``M`` models: what one of them wrongly likes, the others may not (Coste et al. 2023,
    arXiv 2310.02743).

    ``mean``; ``minimum``, the most pessimistic model ("worst case"); ``mean_minus_std``, ``mean - penalty · std`` over the
    models (a population's deviation), which is low where they disagree. (The paper's "uncertainty weighted" score takes off
    the variance; the deviation is in units of the score.)

    Raises:
        RewardError: an unknown way, a negative penalty, or a disagreement of fewer than two models.
    """
    score = np.asarray(score_MG, np.float64)
    if combine not in COMBINED:
        raise RewardError(f'combine="{combine}" is unknown; use {", ".join(COMBINED)}')
    if combine == "mean_minus_std" and len(score) < 2:
        raise RewardError("one reward model alone cannot disagree; name several, such as model:@a+@b, or use combine=mean")
    if penalty < 0:
        raise RewardError(f"penalty={penalty} would reward disagreement; use 0 or more")
    if combine == "minimum":
        return score.min(0).tolist()
    spread = penalty * score.std(0) if combine == "mean_minus_std" else 0.0
    return (score.mean(0) - spread).tolist()


class StepReward(ModelReward):
    """Scores the steps of the samples of a group; an ``async`` reward function of (group, columns).

    ``decode`` gives the policy's text of tokens, ``row`` what the model reads: a row whose actions follow the steps.
    Options: ``separator`` as in training; ``use``, one of :data:`WAYS`: each step's probability on the step's last token
    (``steps``, for online training), or one number a sample, as for ranking: the least of them, their product, the last,
    their mean. A sample without a step is worth 0.
    """

    _output: ClassVar[str] = "step"

    def __init__(self, scorer: Scorer, name: str, decode: Decode, row: Callable[[str], StepRow]) -> None:
        super().__init__(scorer, name)
        self._decode = decode
        self._row_with = row

    async def __call__(
        self, group: Group, columns: Mapping[str, Any], *, separator: str = "\n", use: str = "steps"
    ) -> list[Score]:
        """One score a sample, or one per action token. Waits for the model, bounded by the caller's deadline.

        Raises:
            RewardError: an unknown way, a failing model, or a sample that does not fit it.
        """
        if use not in WAYS:
            raise RewardError(f'use="{use}" is unknown; use {", ".join(WAYS)}')
        row = self._row_with(separator)
        steps = [steps_of(sample.tokens_T[sample.action_T].tolist(), self._decode, separator) for sample in group.samples]
        scores = await self._scores(
            tuple(
                row(sample, group.prompt, [text for text, _ in found])
                for sample, found in zip(group.samples, steps, strict=True)
            )
        )
        probability = [1 / (1 + np.exp(-np.asarray(score_S, np.float64))) for score_S in scores]
        return [
            summary(values_S.tolist(), [end for _, end in found], int(sample.action_T.sum()), use)
            for values_S, found, sample in zip(probability, steps, group.samples, strict=True)
        ]


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
