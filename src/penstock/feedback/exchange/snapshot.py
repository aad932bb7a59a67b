"""From votes to training rows: preference pairs with soft labels, single good and bad completions, corrected answers.

Everything starts from a :class:`Snapshot`, the first ``until`` events of a log. The log only grows, so the same ``until``
gives the same rows for ever; their content hash is what a run records.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import numpy as np

from penstock.feedback.errors import FeedbackError
from penstock.feedback.judgements import Comparison, Rating, Unit, comparisons, gold_units, once, ratings, unit_of
from penstock.feedback.quality.dawid_skene import CEILING
from penstock.feedback.quality.leaderboard import Duel
from penstock.feedback.quality.reliability import fail_gold, preference_probability, preference_share, reliability
from penstock.feedback.records import DEFAULT, JUDGEMENTS, Event, Item, Nature, Task, canonical, vars_of
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

COUNTS = math.log(0.6 / 0.4)
"""Weight from which an annotator's word makes a split. Who errs of two who differ is estimated from little but themselves."""

LABELLED = ("ask", "anchor", "adjudication")
"""Purposes of tasks that are trained on. Gold and repeats measure people, not policies."""


@dataclass(frozen=True)
class Snapshot:
    """The first ``until`` events of a log, with the tasks they speak of and what kind of annotator each one is."""

    events: tuple[Event, ...]
    tasks: Mapping[str, Task]
    natures: Mapping[str, Nature]
    project: str | None = None
    """Whose votes count; None: of all projects. Events are numbered through the whole log."""

    @property
    def until(self) -> int:
        return len(self.events)

    @cached_property
    def state(self) -> State:
        """What is in force after them."""
        return fold(self.events, self.project)

    def gold(self, axis: str = "overall") -> dict[Unit, float]:
        """The right preference on an axis of every unit of gold that these events speak of."""
        names = dict.fromkeys(event.task for event in of_project(self.events, self.project) if event.task)
        return gold_units((self.tasks[name] for name in names if name not in self.state.demoted), axis)

    def rated(self, axis: str = "overall") -> list[Rating]:
        """The ratings in force on an axis; gold that was taken back has no known value."""
        found = ratings(self.state.judgements(), self.tasks, axis)
        return [replace(one, known=None) if one.task.id in self.state.demoted else one for one in found]

    def part(self, until: int, project: str | None = None) -> Snapshot:
        """Its first ``until`` events; of one project, where it is of all."""
        return replace(self, events=self.events[:until], project=project or self.project)


def of_project(events: Iterable[Event], project: str | None) -> list[Event]:
    """Those of a project, or about all."""
    return [event for event in events if project is None or event.project in ("", project)]


def snapshot(store: Store, until: int | None = None, project: str | None = DEFAULT) -> Snapshot:
    """The log up to an event, or as it is now, as one project (None: all) sees it. Raises FeedbackError if it is shorter."""
    events = store.events(until=until)
    if until is not None and len(events) != until:
        raise FeedbackError(f"the log has {len(events)} events, not {until}; is this the same store?")
    names = store.annotators()
    natures = {annotator.name: annotator.nature for annotator in names}
    return Snapshot(tuple(events), store.tasks_of(of_project(events, project)), natures, project)


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


def annotator_weights(
    found: Sequence[Comparison], gold: Mapping[Unit, float], labels: Labels, rated: Sequence[Rating] = ()
) -> dict[str, float]:
    """What each annotator's vote is worth, in log-odds; 0 for who fails gold. One who shares no unit with anybody has the
    common weight."""
    names = {comparison.annotator for comparison in found}
    weights = dict.fromkeys(sorted(names), COMMON_WEIGHT)
    if labels.weights == "equal":
        return weights | dict.fromkeys(fail_gold(found, gold, rated), 0.0)
    return weights | {name: one.weight for name, one in reliability(found, gold, rated).items()}


class Voice(NamedTuple):
    """What somebody whose word counts said, and what it is worth in log-odds."""

    said: Comparison
    weight: float


@dataclass(frozen=True)
class Votes:
    """What those who count have said, and what each one's word is worth by everything that the log says about them."""

    found: Sequence[Comparison]
    """Repeats and gold among them."""
    rated: Sequence[Rating]
    gold: Mapping[Unit, float]
    weights: Mapping[str, float]
    """In log-odds, by annotator."""
    failed: Collection[str] = ()
    """Who fails gold."""

    @classmethod
    def of(cls, taken: Snapshot, labels: Labels) -> Votes:
        found, gold = counted(taken, labels), taken.gold(labels.axis)
        rated = [one for one in taken.rated(labels.axis) if taken.natures[one.annotator] in labels.natures]
        return cls(found, rated, gold, annotator_weights(found, gold, labels, rated), fail_gold(found, gold, rated))

    def voices(self, said: Sequence[Comparison]) -> list[Voice]:
        """Those whose word counts about one unit, each with its weight; where adjudicators have decided, these alone."""
        decided = [one for one in said if one.purpose == "adjudication" and one.annotator not in self.failed]
        if decided:
            return [Voice(one, max(self.weights[one.annotator], ADJUDICATOR_WEIGHT)) for one in decided]
        return [Voice(one, self.weights[one.annotator]) for one in said if self.weights[one.annotator] > 0]

    @cached_property
    def said(self) -> Mapping[Unit, Sequence[Comparison]]:
        """Of each unit, without repeats."""
        made: dict[Unit, list[Comparison]] = defaultdict(list)
        for comparison in self.found:
            if comparison.purpose != "repeat":
                made[comparison.unit].append(comparison)
        return made

    def log_odds(self, unit: Unit) -> float:
        """Of the unit's first response being the better one, by its votes; 0 if they lean to neither or nobody voted."""
        return sum(one.said.sign * one.weight for one in self.voices(once(self.said.get(unit, ()))))

    def signs(self, task: Task) -> list[int]:
        """What each annotator whose word is worth something said when this task asked, about its unit."""
        said = self.said.get(unit_of(task.item)[0], ())
        return [one.sign for one in said if one.task.id == task.id and self.weights[one.annotator] > 0]

    def newest(self, unit: Unit) -> int:
        """The event that said something about a unit last."""
        return max((one.event.sequence for one in self.said.get(unit, ())), default=0)


def duels_of(taken: Snapshot, labels: Labels) -> list[Duel]:
    """Each annotator's word, once, on two responses whose models are known, of those whose word is worth something."""
    votes, made = Votes.of(taken, labels), []
    for one in once(votes.found):
        first, second = (one.task.item.responses[place].model for place in one.responses)
        if one.purpose in LABELLED and votes.weights[one.annotator] > 0 and first and second:
            made.append(Duel(first, second, (1 + one.sign) / 2, one.unit.prompt))
    return made


def preference_pairs(taken: Snapshot, labels: Labels | None = None) -> list[Row]:
    """One row for each two texts that were compared as answers to a prompt and did not tie, the likelier one as ``chosen``,
    however many tasks asked about them. An even split is left out: it is for an adjudicator. So is what most call a tie.

    Columns: ``prompt``, ``chosen``, ``rejected``, ``probability`` (that chosen is the better one), ``strength`` (how much
    better those who prefer it find it, 1 to 3 on average; 1 where gold alone prefers it), ``votes`` (of those whose word
    counts, each once; where adjudicators have decided, theirs), ``agreement`` (share of these for it, ties half), ``time``
    (of the newest vote, seconds), and of the first task that asked: ``task``, ``strategy``, ``guideline``, ``groups``, and
    where both responses come from (``chosen_origin``, ``rejected_origin``: run, stage, version).
    """
    labels = labels or Labels()
    votes = Votes.of(taken, labels)
    asked: dict[Unit, list[Comparison]] = defaultdict(list)
    for comparison in once(votes.found):
        if comparison.purpose in LABELLED:
            asked[comparison.unit].append(comparison)
    made = (_pair(said, votes.voices(said), votes.gold.get(unit), labels) for unit, said in asked.items())
    return [row for row in made if row is not None]


def media_of(item: Item, **responses: int) -> Row:
    """The column ``media`` of a row: what prompt and responses have besides their texts; none where it is texts alone."""
    parts = {"prompt": item.blobs} | {name: item.responses[index].blobs for name, index in responses.items()}
    return {"media": {name: [vars_of(blob) for blob in blobs] for name, blobs in parts.items()}} if any(parts.values()) else {}


def _pair(said: Sequence[Comparison], voices: Sequence[Voice], known: float | None, labels: Labels) -> Row | None:
    """The row of a unit; ``known`` is what gold says of it, None for nothing."""
    first = _chance(voices, labels) if known is None else (1 + float(np.sign(known)) * (2 * CEILING - 1)) / 2
    if first == 0.5:
        return None
    side = 1 if first > 0.5 else -1
    chosen, rejected = said[0].responses[::side]
    share = sum((1 + side * one.said.sign) / 2 for one in voices) / max(1, len(voices))
    strengths = [abs(one.said.preference) for one in voices if one.said.sign == side] or [1.0]
    task, responses = said[0].task, said[0].task.item.responses
    return {
        "prompt": task.item.prompt,
        "chosen": responses[chosen].text,
        "rejected": responses[rejected].text,
        "probability": round(max(first, 1 - first), 9),
        "strength": round(sum(strengths) / len(strengths), 9),
        "votes": len(voices),
        "agreement": round(share, 9),
        "time": max(comparison.event.time for comparison in said),
        "task": task.id,
        "strategy": task.strategy,
        "guideline": task.guideline,
        "groups": dict(task.item.groups),
        "chosen_origin": responses[chosen].origin,
        "rejected_origin": responses[rejected].origin,
        **media_of(task.item, chosen=chosen, rejected=rejected),
    }


def _chance(voices: Sequence[Voice], labels: Labels) -> float:
    """That the first response is better; one half where that is open: as many of those whose word counts say one thing as the
    other, or most of them call it a tie."""
    signs = [(one.said.sign, one.weight) for one in voices]
    sided = [sign for sign, weight in signs if sign and weight >= COUNTS]
    if (sided and not sum(sided)) or 2 * sum(not sign for sign, _ in signs) > len(signs):
        return 0.5
    return (preference_probability if labels.soft == "posterior" else preference_share)(signs)


def labelled_completions(taken: Snapshot, labels: Labels | None = None) -> list[Row]:
    """One row for each response that people found good or bad: ``prompt``, ``completion``, ``label`` and ``votes``, for KTO.

    Good is what is rated above the middle of the scale on average, or what wins its comparisons; what a majority calls bad
    together with the other one (``both_bad``) is bad. Averages are weighted; what lies on the fence is left out.
    """
    votes = Votes.of(taken, labels or Labels())
    balance: dict[tuple[str, str], list[tuple[float, float, Task, int]]] = defaultdict(list)
    """Of each response: what each judgement says of it, from -1, bad, to 1, good; its weight; and where it is."""
    for comparison in once(votes.found):
        if comparison.purpose not in LABELLED or comparison.task.form == "rating":
            continue
        weight, unit = votes.weights[comparison.annotator], comparison.unit
        for response, text, sign in zip(comparison.responses, (unit.first, unit.second), (1, -1), strict=True):
            value = -1.0 if comparison.event.body.get("both_bad") else float(sign * comparison.sign)
            balance[unit.prompt, text].append((value, weight, comparison.task, response))
    for rating in votes.rated:
        if rating.purpose in LABELLED:
            low, high = rating.task.scale
            value, weight = (2 * rating.value - low - high) / (high - low), votes.weights.get(rating.annotator, COMMON_WEIGHT)
            balance[rating.unit].append((value, weight, rating.task, rating.response))
    rows = []
    for said in balance.values():
        total = sum(value * weight for value, weight, *_ in said)
        if abs(total) > 1e-9:
            *_, task, response = said[0]
            row = {"prompt": task.item.prompt, "completion": task.item.texts[response], "label": total > 0}
            rows.append({**row, "votes": len(said), "task": task.id, **media_of(task.item, completion=response)})
    return rows


def corrections(taken: Snapshot, labels: Labels | None = None) -> list[Row]:
    """One row for each edit in force: ``prompt``, ``completion`` (what a person made of it), ``original``; for SFT.

    With ``chosen`` and ``rejected`` next to them, the rows are preference pairs as well.
    """
    labels = labels or Labels()
    rows = []
    for event in taken.state.edits():
        if taken.natures[event.annotator] not in labels.natures:
            continue
        item = taken.tasks[event.task].item
        original, edited = item.responses[event.body["response"]].text, event.body["text"]
        if edited != original:
            row = correction_row(item.prompt, original, edited) | {"task": event.task, "time": event.time}
            rows.append(row | media_of(item, original=event.body["response"]))
    return rows


def correction_row(prompt: str, original: str, edited: str) -> Row:
    """A training row of a corrected answer, for SFT and as a preference pair."""
    return {"prompt": prompt, "completion": edited, "original": original, "chosen": edited, "rejected": original}


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


def pseudonyms(key: bytes) -> Callable[[str], str]:
    """Other names, the same for the same person, that nobody can compute or try without the store's key."""
    return lambda name: f"annotator-{hmac.new(key, name.encode(), hashlib.sha256).hexdigest()[:12]}"


def raw_votes(taken: Snapshot, named: Callable[[str], str]) -> list[Row]:
    """Every judgement, pass and remark in force, in the order of the log, gold and repeats among them.

    Columns: ``sequence``, ``time``, ``annotator`` (as ``named`` has it), ``nature``, ``kind``, ``counts`` (False while its
    author is excluded; passes count for nothing), ``task``, ``form``, ``purpose``, ``gold``, ``prompt``, ``responses``,
    ``origins``, ``order`` (which response was shown at each place), ``latency``, ``guideline`` (the version that was
    read), and the fields of the body, such as ``preference``, ``ranks``, ``scores`` or ``text``.
    """
    state = taken.state
    counts = {event.sequence for event in (*state.judgements(), *state.edits())}
    rows = []
    for event in sorted((*state.standing.values(), *state.remarks.values()), key=lambda event: event.sequence):
        task = taken.tasks[event.task]
        about: dict[str, Any] = {
            "sequence": event.sequence,
            "time": event.time,
            "annotator": named(event.annotator),
            "nature": taken.natures[event.annotator],
            "kind": event.kind,
            "counts": event.sequence in counts if event.kind in JUDGEMENTS else None,
            "task": task.id,
            "form": task.form,
            "purpose": task.purpose,
            "gold": task.gold,
            "prompt": task.item.prompt,
            "responses": list(task.item.texts),
            "origins": [response.model for response in task.item.responses],
            "order": list(event.order),
            "latency": event.latency,
            "guideline": event.guideline,
            **media_of(task.item, **{f"response {index + 1}": index for index in range(len(task.item.responses))}),
        }
        rows.append(about | dict(event.body))
    return rows
