"""Samples of a log as a question to people."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from penstock.feedback.errors import FeedbackError, StoreUnavailable
from penstock.feedback.records import Item, Response, Task
from penstock.web.refusals import Refusal

MOST = 8
"""Responses of one question."""
STRATEGY = "picked by hand"
"""How such a task was chosen: never at random, so drift and bias are not estimated from it."""


class Asking(Protocol):
    """The verb of the feedback store that takes tasks."""

    def ask(self, tasks: Sequence[Task]) -> list[str]: ...


def task_of(run: str, stage: str, samples: Sequence[tuple[int, Any]], overlap: int) -> Task:
    """One task from samples of one prompt, given as (step, row of the log): two are a pair, more a ranking, one a rating.

    Raises:
        Refusal: the samples are of several prompts, the same text twice, failed, or without text.
    """
    if not 1 <= len(samples) <= MOST:
        raise Refusal(400, f"{len(samples)} samples; choose 1 to {MOST} of one prompt", param="samples")
    rows = [row for _, row in samples]
    if not all(isinstance(row, Mapping) and isinstance(row.get("prompt"), str) and row.get("text") for row in rows):
        raise Refusal(400, "a sample without a prompt or without text cannot be judged; choose others", param="samples")
    if len({row["prompt"] for row in rows}) > 1:
        raise Refusal(400, "the samples answer different prompts; choose samples of one prompt", param="samples")
    if len({row["text"] for row in rows}) < len(rows):
        raise Refusal(400, "two of the samples say the same, so there is nothing to compare; choose others", param="samples")
    responses = tuple(response_of(run, stage, row) for row in rows)
    key = re.sub(r"#\d+$", "", str(rows[0].get("key") or ""))
    form: Any = {1: "rating", 2: "pair"}.get(len(rows), "ranking")
    try:
        return Task(item=Item(rows[0]["prompt"], responses, key=key), form=form, overlap=overlap, strategy=STRATEGY)
    except FeedbackError as error:
        raise Refusal(400, str(error), param="samples") from error


def put(store: Asking, task: Task) -> list[str]:
    """Add a task to a store and give its name. Raises Refusal: the store cannot take it, or does not answer."""
    try:
        return store.ask([task])
    except StoreUnavailable as error:
        raise Refusal(503, str(error)) from error
    except FeedbackError as error:
        raise Refusal(400, str(error), param="samples") from error


def response_of(run: str, stage: str, row: Mapping[str, Any]) -> Response:
    """A row of the log as a response; its version is -1 where an older log does not tell it."""
    version = row.get("version")
    return Response(str(row["text"]), run=run, stage=stage, version=version if isinstance(version, int) else -1)


def open_store(place: str | Path) -> Any:
    """The feedback store of a place; see ``Store.open``."""
    from penstock.feedback.store import Store

    return Store.open(place)
