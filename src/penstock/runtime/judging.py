"""Who answers a stage's questions besides people: rewards, models and servers, each as an annotator of nature ``judge``."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.config.ask import Ask, Judge, ServedJudge
from penstock.config.parts import RewardSpec
from penstock.core.errors import RewardError
from penstock.core.types import Group, Prompt, PromptKey, Sample, SampleKey
from penstock.feedback.asking import Asked
from penstock.feedback.errors import AlreadyAnswered, FeedbackError, SeatTaken
from penstock.feedback.exchange.snapshot import Labels, Snapshot, Votes, counted
from penstock.feedback.judgements import unit_of
from penstock.feedback.judges import BothOrders, beside_people, place_share, question, read_answer
from penstock.feedback.quality.reliability import Share
from penstock.feedback.records import Annotator, Item, Submission, Task
from penstock.runtime.build import StageRewards

if TYPE_CHECKING:
    from penstock.feedback.store import Store

MakeRewards = Callable[[RewardSpec], StageRewards]


def group_of(item: Item) -> Group:
    """An item as the group of samples that it was made of, with exact tokens."""
    key = PromptKey(item.key or item.id[:12], 0, 0)
    columns = {"prompt": item.prompt, **item.groups}
    prompt = Prompt(key, item.prompt, columns=columns, blobs=item.blobs)
    return Group(prompt, tuple(sample_of(item, key, g) for g in range(len(item.responses))))


def sample_of(item: Item, key: PromptKey, index: int) -> Sample:
    """One response as the sample that it was made of."""
    found = item.responses[index]
    tokens_T = np.asarray(found.tokens, np.int32)
    generated = len(found.logp)
    action_T = np.arange(len(tokens_T)) >= len(tokens_T) - generated
    logp_T = np.zeros(len(tokens_T), np.float32)
    logp_T[action_T] = found.logp
    version_T = np.where(action_T, found.version, -1).astype(np.int32)
    columns = {"tokens_T": tokens_T}
    return Sample(SampleKey(key, index), columns, action_T, logp_T, version_T, "stop", found.text, blobs=found.blobs)


async def truths(spec: RewardSpec, items: Sequence[Item], rewards: MakeRewards) -> dict[str, list[float]]:
    """The reward of each response of each item, by the item's name.

    Raises:
        RewardError: a response has none.
    """
    scored = rewards(spec)
    try:
        groups = await asyncio.gather(*(scored(group_of(item)) for item in items))
    finally:
        await scored.close()
    found = {}
    for item, group in zip(items, groups, strict=True):
        failed = next((sample.error for sample in group.samples if sample.reward is None), None)
        if failed:
            raise RewardError(f"a question's response has no score: {failed}")
        found[item.id] = [float(sample.reward or 0.0) for sample in group.samples]
    return found


Heard = dict[str, tuple[Share, int]]
"""For each judge: answers for what was shown first, and questions without an answer to be read."""


async def ask_judges(stage: Ask, store: Store, asked: Sequence[Asked], rewards: MakeRewards) -> Heard:
    """Let every judge of a stage answer its questions, but for those answered before; people's seats are left alone."""
    heard: Heard = {}
    for spec in stage.annotators:
        if not isinstance(spec, Judge | ServedJudge):
            continue
        store.enrol(Annotator(spec.name, nature="judge"), stage.project)
        place, skipped = Share(0, 0), 0
        done = {event.key for event in store.events() if event.annotator == spec.name}
        tasks = [one.task for one in asked if not {key_of(spec.name, one.task), skip_of(spec.name, one.task)} & done]
        if isinstance(spec, Judge):
            scores = await truths(spec.reward, [task.item for task in tasks], rewards)
            gaps = {task.id: scores[task.item.id][0] - scores[task.item.id][1] for task in tasks}
            said = {name: 0 if abs(gap) <= spec.close else int(np.sign(gap)) for name, gap in gaps.items()}
        else:
            orders = await both_orders(spec, tasks)
            place = place_share(list(orders.values()))
            said = {name: both.preference for name, both in orders.items() if both.preference is not None}
            skipped = len(orders) - len(said)
            pass_over(store, spec.name, [task for task in tasks if task.id not in said])
        put(store, spec.name, [task for task in tasks if task.id in said], said)
        heard[spec.name] = place, skipped
    return heard


def reports(asked: Sequence[Asked], heard: Heard, taken: Snapshot, people: Votes) -> Iterator[dict[str, str | int]]:
    """A line about each judge of a stage compared with people, on this stage's questions."""
    turned = [(unit_of(one.task.item), one.task.item.texts) for one in asked]
    lengths = {unit: (len(texts[turn < 0]), len(texts[turn > 0])) for (unit, turn), texts in turned}
    theirs = {unit: int(np.sign(people.log_odds(unit))) for unit in people.said if unit in lengths}
    found = counted(taken, Labels(natures=("judge",)))
    for judge, (place, skipped) in heard.items():
        said = {one.unit: one.sign for one in found if one.annotator == judge and one.unit in lengths}
        yield beside_people(judge, said, theirs, lengths, place, skipped)


def copy_for(judge: str, task: Task) -> Task:
    """The question as it is put to a judge: the same unit, with a seat of its own."""
    return replace(task, origin=task.origin or task.id, overlap=1, round=f"judge {judge} {task.round}")


def key_of(judge: str, task: Task) -> str:
    """The key of a judge's vote on a question."""
    return f"judge:{judge}:{copy_for(judge, task).id}"


def skip_of(judge: str, task: Task) -> str:
    """The key of a judge's passing over a question."""
    return f"judge:{judge}:{task.id}:skip"


async def both_orders(spec: ServedJudge, tasks: Sequence[Task]) -> dict[str, BothOrders]:
    """What a served model says of each pair in both orders, at most ``spec.at_once`` questions at a time.

    Raises:
        FeedbackError: a question has images, sounds or videos, which such a judge is not shown.
        GenerationError, ConnectionLost, DeadlinePassed: the server refuses, is gone, or is too slow.
    """
    if any(task.item.every_blob for task in tasks):
        raise FeedbackError(f"{spec.name} reads texts alone, and questions have media; ask people, or a Judge with a reward")
    from penstock.serve.judge import AnswerCut, OneWord

    server, places = OneWord(spec.url, spec.key, spec.timeout, spec.model, spec.chat), asyncio.Semaphore(spec.at_once)

    async def one(prompt: str, first: str, second: str) -> Any:
        async with places:
            try:
                return read_answer(await server.ask(question(prompt, first, second)))
            except AnswerCut:  # no word, as it was asked for
                return None

    async def both(task: Task) -> BothOrders:
        first, second = (response.text for response in task.item.responses)
        prompt = task.item.prompt
        return BothOrders(*await asyncio.gather(one(prompt, first, second), one(prompt, second, first)))

    try:
        found = await asyncio.gather(*(both(task) for task in tasks))
    finally:
        await server.close()
    return {task.id: answer for task, answer in zip(tasks, found, strict=True)}


def put(store: Store, judge: str, tasks: Sequence[Task], said: Mapping[str, int]) -> None:
    """Record a judge's votes, each on a copy of its question; again, it adds nothing."""
    copies = [copy_for(judge, task) for task in tasks]
    store.ask(copies)
    store.record(
        [
            Submission("vote", copy.id, judge, key_of(judge, task), {"preference": said[task.id]})
            for task, copy in zip(tasks, copies, strict=True)
        ]
    )


def pass_over(store: Store, judge: str, tasks: Sequence[Task]) -> None:
    """Record that a judge gave no answer to be read; where all seats are taken already, nothing is lost."""
    for task in tasks:
        with contextlib.suppress(SeatTaken, AlreadyAnswered):
            given = Submission("skip", task.id, judge, skip_of(judge, task), {"reason": "no answer to be read"})
            store.record([given])
