"""From samples to questions, and from votes to a report card: what a stage that asks computes, without models or a store.

Questions are written down before anybody is asked: a resume reads them and asks nothing twice.

Shapes: ``E`` reward models, ``U`` candidate pairs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from penstock.core.blobs import Blob
from penstock.core.files import replaced
from penstock.data.files import numbered_json_rows
from penstock.feedback.errors import FeedbackError
from penstock.feedback.exchange.snapshot import Votes
from penstock.feedback.judgements import unit_of
from penstock.feedback.quality.drift import AnchorChange, JudgedPair, anchor_change
from penstock.feedback.records import JUDGEMENTS, WITHDRAWALS, Event, Item, Response, Task, canonical
from penstock.feedback.select import Mix, anchors, select

DUEL = "duel"
"""Strategy of a pair of the judged policy (the first response) and the one it is judged against."""


@dataclass(frozen=True)
class Asked:
    """A question and what the reward models made of it before anybody answered.

    ``margins`` holds, for each of them, the score of the first response less that of the second; empty without reward models.
    """

    task: Task
    margins: tuple[float, ...] = ()

    @property
    def margin(self) -> float:
        """The mean margin; NaN without reward models."""
        return sum(self.margins) / len(self.margins) if self.margins else float("nan")


def write(asked: Sequence[Asked], path: Path) -> None:
    """Write questions, whole or not at all, durably: one JSON object a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replaced(path) as out:
        for one in asked:
            item = one.task.item
            responses = [response.plain() for response in item.responses]
            line = {"task": one.task.plain(), "item": item.plain(), "responses": responses, "margins": list(one.margins)}
            out.write(canonical(line) + "\n")


def read(path: Path) -> list[Asked]:
    """The questions of a file. Raises DataError, FeedbackError: it is damaged, or a question is not what its name says."""
    found = []
    for number, row in numbered_json_rows(path):
        try:
            item = Item.of(row["item"], tuple(map(Response.of, row["responses"])))
            if item.id != row["task"]["item"]:
                raise ValueError(f"item {item.id[:12]} is not {row['task']['item'][:12]}")
            found.append(Asked(Task.of(row["task"], item), tuple(row["margins"])))
        except (ValueError, KeyError, TypeError) as error:
            raise FeedbackError(f"{path}:{number}: not a question ({error!r}); restore it from a backup") from error
    return found


@dataclass(frozen=True)
class Answered:
    """The samples of one prompt and the reward models' scores ``score_EG`` of them (no rows without models)."""

    prompt: str
    key: str
    responses: tuple[Response, ...]
    score_EG: tuple[tuple[float, ...], ...] = ()
    groups: Mapping[str, str] | None = None
    blobs: tuple[Blob, ...] = ()
    """The prompt's."""

    def pair(self, first: int, second: int, **fields: Any) -> Asked:
        """A question about two of the samples."""
        both = (self.responses[first], self.responses[second])
        item = Item(self.prompt, both, self.key, dict(self.groups or {}), self.blobs)
        return Asked(Task(item=item, **fields), tuple(score_G[first] - score_G[second] for score_G in self.score_EG))


def candidates(answered: Sequence[Answered]) -> list[tuple[Answered, int, int]]:
    """Each two samples in a row of one prompt that differ; no sample is in two pairs."""
    return [
        (one, first, first + 1)
        for one in answered
        for first in range(0, len(one.responses) - 1, 2)
        if one.responses[first].content != one.responses[first + 1].content
    ]


def questions(answered: Sequence[Answered], wanted: int, mix: Mix, seed: int, **fields: Any) -> list[Asked]:
    """The pairs to ask, chosen by the mix from all candidates; fewer where policies repeat themselves too much.

    ``fields`` are those of every task, such as ``overlap``.
    """
    pairs = candidates(answered)
    scorers = max((len(one.score_EG) for one, _, _ in pairs), default=0)
    score_EU2 = np.zeros((max(1, scorers), len(pairs), 2))
    for member in range(scorers):
        for index, (one, first, second) in enumerate(pairs):
            score_EU2[member, index] = one.score_EG[member][first], one.score_EG[member][second]
    chosen = [(*pairs[index], strategy) for index, strategy in select(score_EU2, min(wanted, len(pairs)), mix, seed)]
    return [one.pair(first, second, strategy=strategy, **fields) for one, first, second, strategy in chosen]


def duels(answered: Sequence[Answered], against: Sequence[Answered], wanted: int, **fields: Any) -> list[Asked]:
    """The first samples of both policies for the first ``wanted`` prompts where they differ; the judged policy's is first."""
    found = []
    for mine, theirs in zip(answered, against, strict=True):
        if mine.responses[0].content != theirs.responses[0].content:
            scores = tuple((own[0], other[0]) for own, other in zip(mine.score_EG, theirs.score_EG, strict=True))
            both = replace(mine, responses=(mine.responses[0], theirs.responses[0]), score_EG=scores)
            found.append(both.pair(0, 1, strategy=DUEL, **fields))
    return found[:wanted]


def repeated(before: Sequence[Asked], wanted: int, round: str) -> list[Asked]:
    """The first random questions of an earlier round, to be asked again as anchors of this one."""
    chosen = [one for one in before if one.task.strategy == "random" and one.task.purpose == "ask"][:wanted]
    tasks = anchors([one.task for one in chosen], round)
    return [Asked(task, one.margins) for task, one in zip(tasks, chosen, strict=True)]


def judged_pairs(asked: Sequence[Asked], votes: Votes, strategy: str = "random") -> list[JudgedPair]:
    """Questions of one strategy with what people and the reward models think of them, in the order of the votes; no ties.

    Duels are not among the random ones: who always prefers the newer policy would look like a good judge wherever that one
    wins. The first response of a duel is the judged policy's.
    """
    found = []
    for one in asked:
        task, (unit, turn) = one.task, unit_of(one.task.item)
        log_odds = turn * votes.log_odds(unit)
        if task.strategy == strategy and task.purpose == "ask" and log_odds and one.margins:
            first, second = task.item.texts
            pair = JudgedPair(log_odds, one.margin, (len(first), len(second)), task.item.groups)
            found.append((votes.newest(unit), pair))
    return [pair for _, pair in sorted(found, key=lambda pair: pair[0])]


def anchored(asked: Sequence[Asked], before: Sequence[Asked], votes: Votes) -> AnchorChange | None:
    """How votes on the anchors differ from those on the questions they repeat; None without anchors that have votes."""
    said = [
        {unit_of(one.task.item)[0]: signs for one in of if one.task.purpose == purpose and (signs := votes.signs(one.task))}
        for of, purpose in ((before, "ask"), (asked, "anchor"))
    ]
    return anchor_change(*said) if said[0].keys() & said[1].keys() else None


class Tally:
    """How many judgements in force some tasks have, kept up as a log grows."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.wanted = {task.id: task.overlap for task in tasks}
        self.heard = 0
        """Events read so far; the next ones come after it."""
        self._standing: dict[int, Event] = {}

    def hear(self, events: Sequence[Event]) -> None:
        """The events that came after those heard before, in their order."""
        for event in events:
            self.heard = event.sequence
            if event.kind in JUDGEMENTS and event.task in self.wanted:
                self._standing[event.sequence] = event
            elif event.kind in WITHDRAWALS:
                self._standing.pop(event.target, None)

    @property
    def votes(self) -> int:
        """Judgements in force."""
        return len(self._standing)

    @property
    def answered(self) -> int:
        """Tasks that have all the judgements they want."""
        judged = Counter(event.task for event in self._standing.values())
        return sum(judged[task] >= overlap for task, overlap in self.wanted.items())

    def by_annotator(self) -> dict[str, int]:
        """Judgements of each annotator, by name."""
        return dict(sorted(Counter(event.annotator for event in self._standing.values()).items()))
