"""Annotators with known faults, for tests and demonstrations. They are enrolled as ``simulated`` and stay so."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.config.ask import Simulated
from penstock.feedback.records import DEFAULT, JUDGEMENT, Annotator, Lease, Submission, Task, digest

if TYPE_CHECKING:
    from penstock.feedback.store import Store

Truth = Callable[[Task], Sequence[float]]
"""How good each response of a task really is; higher is better."""


SECONDS = 30.0
"""Median time for a task; each takes between half and twice of it."""


def utilities(person: Simulated, truth: Sequence[float], order: Sequence[int], draw: random.Random) -> list[float]:
    """How good the responses seem to this annotator now."""
    seen = [-value for value in truth] if person.adversary else list(truth)
    if draw.random() < person.left_bias:
        return [float(len(order) - list(order).index(response)) for response in range(len(seen))]
    return [-value for value in seen] if draw.random() < person.noise else seen


def question_of(task: Task) -> str:
    """What a task asks, by hash, without the names of runs and stores: the same in every run of the same seed."""
    item = task.item
    texts = [[response.text, response.stage, response.version] for response in item.responses]
    return digest([task.form, task.purpose, task.strategy, item.prompt, item.key, texts])


def judge(person: Simulated, task: Task, lease: Lease, truth: Sequence[float], seed: int) -> Submission:
    """What a simulated annotator submits: a pure function of the arguments.

    Chance depends on the seed, the person and :func:`question_of` the task, so a run under another name has the same votes.
    Only ``left_bias`` follows the order shown, which belongs to the task in its store.
    """
    draw = random.Random(f"{seed}/{person.name}/{question_of(task)}")
    seen = utilities(person, truth, lease.order, draw)
    body: dict[str, Any]
    if task.form == "pair":
        strength = 1 + int(draw.random() * 3)
        body = {"preference": strength * (int(seen[0] > seen[1]) - int(seen[0] < seen[1]))}
    elif task.form == "ranking":
        body = {"ranks": [1 + sum(other > value for other in seen) for value in seen]}
    elif task.form == "correction":
        body = {"text": task.item.texts[0]}
    else:
        low, high = task.scale
        scores = [round(low + (high - low) / (1 + float(np.exp(-value))), 3) for value in seen]
        body = {"scores": dict.fromkeys(task.axes, scores)}
    seconds = SECONDS * 2 ** draw.uniform(-1, 1)
    key = f"sim:{seed}:{person.name}:{task.id}"
    return Submission(JUDGEMENT[task.form], task.id, person.name, key, body, seconds)  # type: ignore[arg-type]


def answer_all(
    store: Store, people: Sequence[Simulated], truth: Truth, seed: int = 0, most: int = 10**9, project: str = DEFAULT
) -> int:
    """Let the people answer what a project's queue gives them, in turns, until nothing is left for anybody; gives the count.

    ``most`` bounds the judgements.
    """
    for person in people:
        store.enrol(Annotator(person.name, nature="simulated"), project)
    waiting, judged = list(people), 0
    while waiting and judged < most:
        for person in list(waiting):
            lease = store.next_task(person.name, project=project) if judged < most else None
            if lease is None:
                waiting.remove(person)
                continue
            task = store.task(lease.task)
            store.submit(judge(person, task, lease, truth(task), seed))
            judged += 1
    return judged
