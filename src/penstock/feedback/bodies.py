"""What the body of each kind of event must hold, checked against its task; and from places on the page to responses.

Bodies speak of responses by their index in the item, never by the side they were shown on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from penstock.feedback.errors import FeedbackError
from penstock.feedback.records import JUDGEMENT, JUDGEMENTS, LONGEST_TEXT, Task

STRONGEST = 3
"""A vote's ``preference`` lies between -3 (the second response is much better) and 3 (the first is)."""


def as_items(shown: int, order: Sequence[int]) -> int:
    """A preference between places (positive: the left one) as one between responses (positive: the first one)."""
    return shown if order[0] == 0 else -shown


def as_responses(kind: str, body: Mapping[str, Any], order: Sequence[int]) -> dict[str, Any]:
    """A body that speaks of places, checked already, as one that speaks of responses.

    Args:
        kind: of the event.
        body: what :func:`check` gave.
        order: ``order[place]`` is the index of the response shown there.
    """
    made = dict(body)
    if kind == "vote":
        made["preference"] = as_items(body["preference"], order)
        made["axes"] = {axis: as_items(value, order) for axis, value in body["axes"].items()}
    elif kind == "ranking":
        made["ranks"] = _by_response(body["ranks"], order)
    elif kind == "rating":
        made["scores"] = {axis: _by_response(values, order) for axis, values in body["scores"].items()}
    elif kind in ("edit", "critique") and body["response"] is not None:
        made["response"] = order[body["response"]]
    return made


def as_places(kind: str, body: Mapping[str, Any], order: Sequence[int]) -> dict[str, Any]:
    """A body of the store as one that speaks of places: :func:`as_responses` under the inverse order."""
    inverse = [0] * len(order)
    for place, index in enumerate(order):
        inverse[index] = place
    return as_responses(kind, body, inverse)


def _by_response(values: Sequence[Any], order: Sequence[int]) -> list[Any]:
    """Values given by place, in the order of the responses."""
    turned = [None] * len(order)
    for place, index in enumerate(order):
        turned[index] = values[place]
    return turned


def check(kind: str, body: Mapping[str, Any], task: Task) -> dict[str, Any]:
    """The body, complete and with plain values, as it is stored.

    Raises:
        FeedbackError: an unknown or missing field, a value outside its range, or a judgement that the task does not ask for.
    """
    if kind in JUDGEMENTS and kind != JUDGEMENT[task.form]:
        raise FeedbackError(f"a task of form {task.form} is answered by a {JUDGEMENT[task.form]}, not by a {kind}")
    if kind not in _CHECKS:
        raise FeedbackError(f"kind={kind!r} cannot be submitted; use one of: {', '.join(_CHECKS)}")
    defaults, checked = _CHECKS[kind]
    unknown = set(body) - set(defaults)
    if unknown:
        raise FeedbackError(f"{kind}: unknown field {sorted(unknown)[0]!r}; known are: {', '.join(defaults)}")
    made = {**defaults, **body}
    checked(made, task)
    return made


def _integer(value: Any, low: int, high: int, what: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise FeedbackError(f"{what}={value!r}; give an integer from {low} to {high}")


def _text(value: Any, what: str, *, needed: bool) -> None:
    if not isinstance(value, str) or len(value) > LONGEST_TEXT or (needed and not value.strip()):
        raise FeedbackError(f"{what}={value!r:.60}; give {'a text' if needed else 'text'} of at most {LONGEST_TEXT} characters")


def _vote(body: dict[str, Any], task: Task) -> None:
    _integer(body["preference"], -STRONGEST, STRONGEST, "preference")
    if not isinstance(body["both_bad"], bool) or (body["both_bad"] and body["preference"]):
        raise FeedbackError("both_bad is true or false, and goes with preference 0 only")
    if not isinstance(body["axes"], Mapping) or not set(body["axes"]) <= set(task.axes):
        raise FeedbackError(f"axes={body['axes']!r:.60}; give some of: {', '.join(task.axes)}")
    for axis, value in body["axes"].items():
        _integer(value, -STRONGEST, STRONGEST, f"axes.{axis}")


def _rating(body: dict[str, Any], task: Task) -> None:
    scores, count = body["scores"], len(task.item.responses)
    if not isinstance(scores, Mapping) or not scores or not set(scores) <= set(task.axes):
        raise FeedbackError(f"scores={scores!r:.60}; give a list for some of: {', '.join(task.axes)}")
    low, high = task.scale
    for axis, values in scores.items():
        if not isinstance(values, list | tuple) or len(values) != count:
            raise FeedbackError(f"scores.{axis}={values!r:.60}; give {count} numbers, one a response")
        for value in values:
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not low <= value <= high:  # no NaN is; an integer of any size is compared exactly
                raise FeedbackError(f"scores.{axis}: {value!r} is no number from {low:g} to {high:g}")
    body["scores"] = {axis: list(values) for axis, values in scores.items()}


def _ranking(body: dict[str, Any], task: Task) -> None:
    ranks, count = body["ranks"], len(task.item.responses)
    if not isinstance(ranks, list | tuple) or len(ranks) != count:
        raise FeedbackError(f"ranks={ranks!r:.60}; give {count} ranks, one a response, 1 for the best; equal ones are ties")
    for rank in ranks:
        _integer(rank, 1, count, "rank")
    body["ranks"] = list(ranks)


def _remark(body: dict[str, Any], task: Task, *, of_all: bool = False) -> None:
    if not (of_all and body["response"] is None):
        _integer(body["response"], 0, len(task.item.responses) - 1, "response")
    _text(body["text"], "text", needed=True)


def _passed(body: dict[str, Any], task: Task) -> None:
    _text(body["reason"], "reason", needed=False)


_CHECKS: Mapping[str, tuple[dict[str, Any], Callable[[dict[str, Any], Task], None]]] = {
    "vote": ({"preference": None, "both_bad": False, "axes": {}}, _vote),
    "rating": ({"scores": None}, _rating),
    "ranking": ({"ranks": None}, _ranking),
    "correction": ({"response": 0, "text": None}, _remark),
    "edit": ({"response": None, "text": None}, _remark),
    "critique": ({"response": None, "text": None}, partial(_remark, of_all=True)),
    "skip": ({"reason": ""}, _passed),
    "flag": ({"reason": ""}, _passed),
}
