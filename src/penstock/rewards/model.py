"""A reward model as a reward: the scalar score that a frozen model gives a whole sample."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from penstock.algos.completions import completed
from penstock.core.contracts import Scorer
from penstock.core.errors import RewardError
from penstock.core.messages import Message, assistant
from penstock.core.types import PART, Group, IntArray, Prompt, Row, Sample, Unit
from penstock.data.texts import answer_text, arguments_of, prompt_text, reader
from penstock.models.text import PROBE, Text
from penstock.sandbox.threads import Threads

Prepare = Callable[[Sample, Prompt], IntArray]


def same_tokens(sample: Sample, prompt: Prompt) -> IntArray:
    """The sample's own tokens, for a reward model that shares the policy's tokenizer."""
    return sample.tokens_T


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
        if PART in sample.columns and not alike:
            raise RewardError(
                f"{sample.key} was rendered anew; a reward model with another tokenizer or template cannot read it"
            )
        sample = last_rendering(sample)
        ends = len(sample.tokens_T) and int(sample.tokens_T[-1]) in own.ends
        if alike and ends:
            return sample.tokens_T[-context:]
        if alike and own.tokenizer.chat_template is None:
            return np.append(sample.tokens_T, own.end)[-context:]
        *earlier, last = [assistant(sample.raw_text)] if alike else turns_of(sample, prompt, policy)
        known = replace(prompt, text=prompt.text + "".join(turn["content"] for turn in earlier))
        known = replace(known, messages=(*prompt.messages, *earlier)) if prompt.messages else known
        texts = {"prompt": prompt_text(known, own), "completion": answer_text(known, last, own)}
        tokens_T, _ = completed(texts, "completion", reader(known, own))
        return (np.append(sample.tokens_T, tokens_T[-1]) if alike else tokens_T)[-context:]

    return prepare


def last_rendering(sample: Sample) -> Sample:
    """Of a sample of several sequences the last, which holds the whole conversation; any other as it is."""
    if PART not in sample.columns:
        return sample
    last_T = sample.columns[PART] == sample.columns[PART][-1]
    columns = {name: column[last_T] for name, column in sample.columns.items()}
    steps: dict[str, Any] = {name: getattr(sample, name)[last_T] for name in ("action_T", "logp_T", "version_T")}
    return replace(sample, columns=columns, reward_T=None, **steps)


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

    ``prepare`` gives the tokens that the model reads (:func:`read_by`). Groups that come in the same turn of the event loop are
    scored in one call, in a thread of its own; samples of a group are one unit, so that the scorer may share their prompt. Who
    comes while the thread is busy is not added to a later call: a score depends in its last bits on what else is in the batch,
    which must not depend on the clock.
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
