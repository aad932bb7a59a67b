"""Samples of a log as a question to people."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from penstock.core.events import unpacked
from penstock.core.seeds import seed_of
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


def task_of(spec: Mapping[str, Any], stage: str, samples: Sequence[tuple[int, Any]], overlap: int) -> Task:
    """One task from samples of one prompt, given as (step, row of the log): two are a pair, more a ranking, one a rating.

    Args:
        spec: of the run, as ``run.json`` has it.

    Raises:
        Refusal: the samples are of several prompts, the same text twice, without text, or their tokens are damaged.
    """
    if not 1 <= len(samples) <= MOST:
        raise Refusal(400, f"{len(samples)} samples; choose 1 to {MOST} of one prompt", param="samples")
    rows = [row for _, row in samples]
    if not all(isinstance(row, Mapping) and isinstance(row.get("prompt"), str) and _text(row) for row in rows):
        raise Refusal(400, "a sample without a prompt or without text cannot be judged; choose others", param="samples")
    if len({row["prompt"] for row in rows}) > 1:
        raise Refusal(400, "the samples answer different prompts; choose samples of one prompt", param="samples")
    if len({row["text"] for row in rows}) < len(rows):
        raise Refusal(400, "two of the samples say the same, so there is nothing to compare; choose others", param="samples")
    key = re.sub(r"#\d+$", "", str(rows[0].get("key") or ""))
    form: Any = {1: "rating", 2: "pair"}.get(len(rows), "ranking")
    try:
        responses = tuple(response_of(spec, stage, row) for row in rows)
        return Task(item=Item(rows[0]["prompt"], responses, key=key), form=form, overlap=overlap, strategy=STRATEGY)
    except FeedbackError as error:
        raise Refusal(400, str(error), param="samples") from error


def _text(row: Mapping[str, Any]) -> str:
    """What a sample says; empty where that is no text."""
    return row["text"] if isinstance(row.get("text"), str) else ""


def put(store: Asking, task: Task) -> list[str]:
    """Add a task to a store and give its name. Raises Refusal: the store cannot take it, or does not answer."""
    try:
        return store.ask([task])
    except StoreUnavailable as error:
        raise Refusal(503, str(error)) from error
    except FeedbackError as error:
        raise Refusal(400, str(error), param="samples") from error


def response_of(spec: Mapping[str, Any], stage: str, row: Mapping[str, Any]) -> Response:
    """A row of the log as a response. What the log does not tell stays empty (its version: -1): older logs hold no ids, and
    those of samples that are long or took several turns are never logged. Raises Refusal where they are damaged."""
    tokens, logp = exact(row.get("tokens"))
    version = row.get("version")
    return Response(
        str(row["text"]),
        tokens,
        logp,
        run=str(spec.get("name") or ""),
        stage=stage,
        version=version if isinstance(version, int) else -1,
        sampling=sampling_of(spec, stage, row.get("held_out") is True),
    )


def exact(tokens: Any) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """The ids of a sample and the log-probs of the generated ones; both empty where there are no ids. Raises Refusal."""
    if not isinstance(tokens, Mapping) or "ids" not in tokens:
        return (), ()
    try:
        ids, logp = unpacked(tokens["ids"], "<i4"), unpacked(tokens.get("logp"), "<f4")
    except ValueError as error:
        raise Refusal(400, f"the log's tokens of a sample are damaged ({error}); choose others", param="samples") from error
    if len(logp) > len(ids) or not all(value >= 0 for value in ids) or not all(map(math.isfinite, logp)):
        raise Refusal(400, "the log's tokens of a sample are no ids and log-probs; choose others", param="samples")
    return tuple(ids), tuple(logp)


def sampling_of(spec: Mapping[str, Any], stage: str, held_out: bool) -> dict[str, Any]:
    """How a sample of a stage was generated, or one of its evaluation; empty where the run does not say."""
    stages = [one for one in spec.get("stages") or () if isinstance(one, Mapping) and one.get("name") == stage]
    if not stages:
        return {}
    found = {name: value for name, value in plain(stages[0].get("sampling")).items() if name != "kind"}
    if held_out:
        evaluation = plain(stages[0].get("evaluation"))
        found |= {"temperature": evaluation.get("temperature", 0.0)}
        found |= {"max_new_tokens": longest} if (longest := evaluation.get("max_new_tokens")) else {}
    seed = spec.get("seed")
    return found | ({"seed": seed_of(seed, stage)} if isinstance(seed, int) else {})


def plain(value: Any) -> Mapping[str, Any]:
    """The mapping, or an empty one where there is none."""
    return value if isinstance(value, Mapping) else {}
