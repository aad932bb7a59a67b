"""From votes to training rows: preference pairs with soft labels, single good and bad completions, corrected answers.

Everything starts from a :class:`Snapshot`, the first ``until`` events of a log. The log only grows, so the same ``until``
gives the same rows for ever; their content hash is what a run records.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from penstock.feedback.errors import FeedbackError
from penstock.feedback.judgements import Comparison, Unit, comparisons, ratings
from penstock.feedback.quality.reliability import preference_probability, preference_share, reliability, shared
from penstock.feedback.records import Event, Nature, Task, canonical
from penstock.feedback.state import State, fold

if TYPE_CHECKING:
    from penstock.feedback.store import Store

T = TypeVar("T")
Row = dict[str, Any]

COMMON_WEIGHT = math.log(0.7 / 0.3)
"""What a vote is worth where nothing is known of the voter: people agree with each other's preferences in about 7 of 10 cases
(Ouyang et al. 2022, arXiv 2203.02155: 73%)."""
ADJUDICATOR_WEIGHT = math.log(0.95 / 0.05)
"""What an adjudicator's vote is worth at least, so that it decides between two or three who differ."""

LABELLED = ("ask", "anchor", "adjudication")
"""Purposes of tasks that are trained on. Gold and repeats measure people, not policies."""


@dataclass(frozen=True)
class Snapshot:
    """The first ``until`` events of a log, with the tasks they speak of and what kind of annotator each one is."""

    events: tuple[Event, ...]
    tasks: Mapping[str, Task]
    natures: Mapping[str, Nature]

    @property
    def until(self) -> int:
        return len(self.events)

    @cached_property
    def state(self) -> State:
        """What is in force after them."""
        return fold(self.events)

    def part(self, until: int) -> Snapshot:
        """Its first ``until`` events."""
        return replace(self, events=self.events[:until])


def snapshot(store: Store, until: int | None = None) -> Snapshot:
    """The log up to an event, or as it is now. Raises FeedbackError if the log is shorter."""
    events = store.events(until=until)
    if until is not None and len(events) != until:
        raise FeedbackError(f"the log has {len(events)} events, not {until}; is this the same store?")
    names = store.annotators()
    return Snapshot(tuple(events), store.tasks_of(events), {annotator.name: annotator.nature for annotator in names})


@dataclass(frozen=True)
class Labels:
    """How votes become labels."""

    axis: str = "overall"
    weights: Literal["dawid_skene", "equal"] = "dawid_skene"
    """Each annotator's vote by their estimated accuracy, or all alike."""
    soft: Literal["posterior", "share"] = "posterior"
    """The chance that the first is better by Bayes' rule (people err), or the weighted share of votes (people differ)."""
    natures: tuple[Nature, ...] = ("human", "imported")
    """Whose votes count. Simulated annotators and judges are never mixed in unasked."""

    def __post_init__(self) -> None:
        if self.weights not in ("dawid_skene", "equal") or self.soft not in ("posterior", "share"):
            raise FeedbackError(f"weights={self.weights!r}, soft={self.soft!r}; use dawid_skene or equal, posterior or share")
        unknown = set(self.natures) - {"human", "imported", "simulated", "judge"}
        if unknown or not self.natures:
            raise FeedbackError(f"natures={self.natures}; use some of: human, imported, simulated, judge")


def counted(taken: Snapshot, labels: Labels) -> list[Comparison]:
    """The comparisons in force, of annotators whose votes count, repeats and gold among them."""
    found = comparisons(taken.state.judgements(), taken.tasks, labels.axis)
    return [comparison for comparison in found if taken.natures[comparison.annotator] in labels.natures]


def annotator_weights(found: Sequence[Comparison], labels: Labels) -> dict[str, float]:
    """What each annotator's vote is worth, in log-odds. One who shares no unit with anybody has the common weight."""
    names = {comparison.annotator for comparison in found}
    weights = dict.fromkeys(sorted(names), COMMON_WEIGHT)
    if labels.weights == "equal":
        return weights
    return weights | {name: one.weight for name, one in reliability(shared(found)).items()}


def preference_pairs(taken: Snapshot, labels: Labels | None = None) -> list[Row]:
    """One row for each two responses that were compared and did not tie, the likelier one as ``chosen``.

    Columns: ``prompt``, ``chosen``, ``rejected``, ``probability`` (that chosen is the better one), ``votes``, ``agreement``
    (share of votes for it, ties half), ``time`` (of the newest vote, seconds), ``task``, ``strategy``, ``guideline``,
    ``groups``, and of both responses where they come from (``chosen_origin``, ``rejected_origin``: run, stage, version).
    """
    labels = labels or Labels()
    found = counted(taken, labels)
    weights = annotator_weights(found, labels)
    votes: dict[Unit, list[Comparison]] = defaultdict(list)
    for comparison in found:
        if comparison.purpose in LABELLED:
            votes[comparison.unit].append(comparison)
    made = (_pair(taken.tasks[said[0].task], unit, said, weights, labels) for unit, said in votes.items())
    return [row for row in made if row is not None]


def _pair(task: Task, unit: Unit, said: Sequence[Comparison], weights: Mapping[str, float], labels: Labels) -> Row | None:
    signs = []
    for comparison in said:
        weight = weights[comparison.annotator]
        signs.append((comparison.sign, max(weight, ADJUDICATOR_WEIGHT) if comparison.purpose == "adjudication" else weight))
    combine = preference_probability if labels.soft == "posterior" else preference_share
    first = combine(signs)
    if first == 0.5:
        return None
    chosen, rejected = (unit.first, unit.second) if first > 0.5 else (unit.second, unit.first)
    share = sum((1 + comparison.sign) / 2 for comparison in said) / len(said)
    responses = task.item.responses
    return {
        "prompt": task.item.prompt,
        "chosen": responses[chosen].text,
        "rejected": responses[rejected].text,
        "probability": round(max(first, 1 - first), 9),
        "votes": len(said),
        "agreement": round(share if chosen == unit.first else 1 - share, 9),
        "time": max(comparison.time for comparison in said),
        "task": unit.task,
        "strategy": task.strategy,
        "guideline": task.guideline,
        "groups": dict(task.item.groups),
        "chosen_origin": responses[chosen].origin,
        "rejected_origin": responses[rejected].origin,
    }


def labelled_completions(taken: Snapshot, labels: Labels | None = None) -> list[Row]:
    """One row for each response that people found good or bad: ``prompt``, ``completion``, ``label`` and ``votes``, for KTO.

    Good is what is rated above the middle of the scale on average, or what wins its comparisons; what a majority calls bad
    together with the other one (``both_bad``) is bad. Averages are weighted; what lies on the fence is left out.
    """
    labels = labels or Labels()
    found = counted(taken, labels)
    weights = annotator_weights(found, labels)
    balance: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
    for comparison in found:
        if comparison.purpose not in LABELLED or taken.tasks[comparison.task].form == "rating":
            continue
        weight = weights[comparison.annotator]
        for response, sign in ((comparison.unit.first, 1), (comparison.unit.second, -1)):
            said = -1.0 if comparison.both_bad else float(sign * comparison.sign)
            balance[comparison.unit.task, response].append((said, weight))
    judged = [event for event in taken.state.judgements() if taken.tasks[event.task].purpose in LABELLED]
    for rating in ratings(judged, taken.tasks, labels.axis):
        if taken.natures[rating.annotator] in labels.natures:
            low, high = taken.tasks[rating.task].scale
            said = (2 * rating.value - low - high) / (high - low)
            balance[rating.task, rating.response].append((said, weights.get(rating.annotator, COMMON_WEIGHT)))
    return list(_completions(taken, balance))


def _completions(taken: Snapshot, balance: Mapping[tuple[str, int], Sequence[tuple[float, float]]]) -> Iterator[Row]:
    for (name, response), said in balance.items():
        total = sum(value * weight for value, weight in said)
        if abs(total) > 1e-9:
            item = taken.tasks[name].item
            completion = item.responses[response].text
            yield {"prompt": item.prompt, "completion": completion, "label": total > 0, "votes": len(said), "task": name}


def corrections(taken: Snapshot, labels: Labels | None = None) -> list[Row]:
    """One row for each edit in force: ``prompt``, ``completion`` (what a person made of it), ``original``; for SFT.

    With ``chosen`` and ``rejected`` next to them, the rows are preference pairs as well.
    """
    labels = labels or Labels()
    rows = []
    for event in taken.state.remarks.values():
        if event.kind != "edit" or taken.natures[event.annotator] not in labels.natures:
            continue
        item = taken.tasks[event.task].item
        original, edited = item.responses[event.body["response"]].text, event.body["text"]
        if edited != original:
            row = {"prompt": item.prompt, "completion": edited, "original": original}
            rows.append({**row, "chosen": edited, "rejected": original, "task": event.task, "time": event.time})
    return rows


def chosen(kind: type[T], options: Mapping[str, Any]) -> T:
    """A dataclass of those options that are fields of its; a list, as JSON has it, is a tuple there."""
    given = {field.name: options[field.name] for field in fields(kind) if field.name in options}  # type: ignore[arg-type]
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in given.items()})


FORMS = {"pairs": preference_pairs, "completions": labelled_completions, "corrections": corrections}
"""Exports by name."""


def content_hash(rows: Sequence[Mapping[str, Any]]) -> str:
    """The SHA-256 of rows in their order; equal rows give an equal hash on every machine."""
    total = hashlib.sha256()
    for row in rows:
        total.update(canonical(dict(row)).encode() + b"\n")
    return total.hexdigest()
