"""What the store keeps: responses, items, tasks, annotators, submissions and events, as frozen values named by their content.

An item is a prompt with its responses. A task is an item put to people: in which form, how often, why, under which
guideline. The same item may be asked in several tasks. Both are named by the hash of what they hold, so that adding one
again adds nothing and no name tells what is gold.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, get_args

from penstock.core.blobs import Blob
from penstock.feedback.errors import FeedbackError

Form = Literal["pair", "ranking", "rating", "correction"]
Purpose = Literal["ask", "gold", "repeat", "anchor", "adjudication"]
Role = Literal["annotator", "adjudicator", "admin"]
Nature = Literal["human", "simulated", "judge", "imported"]
Kind = Literal[
    "vote", "rating", "ranking", "correction", "edit", "critique", "skip", "flag", "undo", "retract", "exclude", "include",
    "promote", "demote", "removed",
]  # fmt: skip

ROLES: tuple[str, ...] = get_args(Role)

JUDGEMENT: Mapping[str, str] = {"pair": "vote", "ranking": "ranking", "rating": "rating", "correction": "correction"}
"""The kind of event that answers a task of each form."""

JUDGEMENTS = frozenset(JUDGEMENT.values())
"""Kinds that fill a seat of a task."""
PASSES = frozenset({"skip", "flag"})
"""Kinds that close a task for one annotator and leave its seat to others."""
REMARKS = frozenset({"edit", "critique"})
"""Kinds that may come with an answer, any number of them."""
WITHDRAWALS = frozenset({"undo", "retract"})
"""Kinds that take another event back: one's own, or as an administrator somebody else's."""
EXCLUSIONS = frozenset({"exclude", "include"})
"""Kinds about a person and a time instead of a task: their work does not count, or counts again."""

DEFAULT = "default"
"""The project that every store has from the beginning."""

LONGEST_TEXT = 200_000
"""Characters of one text; longer ones are refused."""


def canonical(value: Any) -> str:
    """JSON with sorted keys and no spaces: equal values give equal text.

    Raises:
        FeedbackError: a value that JSON has no form for, NaN, an infinity, or half a surrogate pair.
    """
    try:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise FeedbackError(f"{value!r:.80} cannot be stored ({error}); give plain finite values") from error
    if re.search(r"\\ud[89a-f]", text):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise FeedbackError(f"a text holds half a character (surrogate at {error.start}); send valid Unicode") from error
    return text


def digest(value: Any) -> str:
    """The SHA-256 of a value's canonical form, in hex."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def vars_of(record: Any) -> dict[str, Any]:
    """The fields of a record by name, and nothing that it has cached."""
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


def named(text: str, blobs: tuple[Blob, ...]) -> str:
    """The hash of what people see: of a text, and of the blobs with it where there are some."""
    seen = text if not blobs else canonical([text, *(blob.hash for blob in blobs)])
    return hashlib.sha256(seen.encode()).hexdigest()


def with_blobs(fields: dict[str, Any], blobs: tuple[Blob, ...]) -> dict[str, Any]:
    """Fields with blobs as plain values; where there are none, without, so that names of texts stay what they were."""
    if blobs:
        return fields | {"blobs": [vars_of(blob) for blob in blobs]}
    return {name: value for name, value in fields.items() if name != "blobs"}


def require_name(name: str, what: str) -> None:
    """Refuse names that cannot be shown or typed safely."""
    if not re.fullmatch(r"[\w@.+\-:/]{1,120}", name):
        raise FeedbackError(f"{what} {name!r:.80}: use 1 to 120 letters, digits or any of _ @ . + - : /")


def require_names(axes: Iterable[str], round: str = "") -> None:
    """Refuse axes and rounds that cannot be shown on a line."""
    for what, name in (("round", round), *(("axis", axis) for axis in axes)):
        if len(name) > 120 or not name.isprintable():
            raise FeedbackError(f"{what} {name!r:.40}…: use at most 120 printable characters")


@dataclass(frozen=True)
class Response:
    """One answer of a policy, with everything that off-policy correction and drift need.

    ``tokens`` are the exact ids, prompt included, as the policy saw and drew them; ``logp`` belongs to the last
    ``len(logp)`` of them, the generated ones, in nats under ``version``.
    """

    text: str
    tokens: tuple[int, ...] = ()
    logp: tuple[float, ...] = ()
    run: str = ""
    stage: str = ""
    version: int = -1
    """Version of the weights; -1 for a text that no run of Penstock wrote."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""
    """Where a text of other origin comes from, such as ``human`` or a model's name. Never shown to annotators."""
    blobs: tuple[Blob, ...] = ()
    """Images, sounds and videos that are the answer, with a text or without one; the store keeps their bytes."""

    def __post_init__(self) -> None:
        if len(self.text) > LONGEST_TEXT:
            raise FeedbackError(f"a response of {len(self.text)} characters; {LONGEST_TEXT} is the most")
        if len(self.logp) > len(self.tokens):
            raise FeedbackError(f"{len(self.logp)} log-probs for {len(self.tokens)} tokens; give one for each, or none")

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Response:
        """The response of :meth:`plain` fields."""
        blobs = tuple(Blob(**one) for one in fields.get("blobs", ()))
        return cls(**{**fields, "tokens": tuple(fields["tokens"]), "logp": tuple(fields["logp"]), "blobs": blobs})

    def plain(self) -> dict[str, Any]:
        """Its fields; without blobs as in older stores."""
        return with_blobs({**vars_of(self), "sampling": dict(self.sampling)}, self.blobs)

    @property
    def content(self) -> str:
        """The name of what people see of it."""
        return named(self.text, self.blobs)

    @property
    def model(self) -> str:
        """What wrote it, such as ``run/stage version 30``, or its source; empty where unknown."""
        return f"{self.run}/{self.stage} version {self.version}" if self.version >= 0 else self.source

    @property
    def origin(self) -> dict[str, Any]:
        """Where it comes from."""
        return {name: getattr(self, name) for name in ("run", "stage", "version", "source")}

    @cached_property
    def body(self) -> bytes:
        """The response as its blob holds it."""
        return canonical(self.plain()).encode()

    @cached_property
    def id(self) -> str:
        """The name of its blob."""
        return hashlib.sha256(self.body).hexdigest()


@dataclass(frozen=True)
class Item:
    """A prompt and the responses to compare, rank or rate. ``groups`` names values to report by, such as the language;
    ``blobs`` belong to the prompt."""

    prompt: str
    responses: tuple[Response, ...]
    key: str = ""
    """The prompt's key in its run (``source/epoch/ordinal``); empty for imported ones."""
    groups: Mapping[str, str] = field(default_factory=dict)
    blobs: tuple[Blob, ...] = ()

    def __post_init__(self) -> None:
        if not self.responses:
            raise FeedbackError("an item needs at least one response")
        if len(self.prompt) > LONGEST_TEXT:
            raise FeedbackError(f"a prompt of {len(self.prompt)} characters; {LONGEST_TEXT} is the most")

    @cached_property
    def id(self) -> str:
        return digest(self.plain())

    @cached_property
    def contents(self) -> tuple[str, tuple[str, ...]]:
        """Names of the prompt and of each response as they are shown: what items that ask the same have in common."""
        return named(self.prompt, self.blobs), tuple(response.content for response in self.responses)

    @property
    def every_blob(self) -> tuple[Blob, ...]:
        """The prompt's and the responses', each once."""
        return tuple(dict.fromkeys([*self.blobs, *(blob for response in self.responses for blob in response.blobs)]))

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(response.text for response in self.responses)

    def plain(self) -> dict[str, Any]:
        """The item with its responses as names of blobs."""
        names = [response.id for response in self.responses]
        made = {"prompt": self.prompt, "responses": names, "key": self.key, "groups": dict(self.groups), "blobs": ()}
        return with_blobs(made, self.blobs)

    @classmethod
    def of(cls, fields: Mapping[str, Any], responses: tuple[Response, ...]) -> Item:
        """The item of :meth:`plain` fields, with its responses."""
        return cls(**{**fields, "responses": responses, "blobs": tuple(Blob(**one) for one in fields.get("blobs", ()))})


@dataclass(frozen=True)
class Task:
    """An item as it is put to people."""

    item: Item
    form: Form = "pair"
    overlap: int = 3
    """Judgements wanted, each by another annotator; never exceeded. 0: as many as there are annotators (gold)."""
    purpose: Purpose = "ask"
    strategy: str = "random"
    """How the item was chosen (``select.py``); only ``random`` ones may be used to estimate drift and bias."""
    axes: tuple[str, ...] = ("overall",)
    scale: tuple[float, float] = (1.0, 7.0)
    """Lowest and highest rating."""
    guideline: str = "1"
    """Version of the guideline that annotators read."""
    gold: Mapping[str, Any] | None = None
    """The right judgement's body, for gold tasks."""
    priority: float = 0.0
    """Higher ones are handed out first."""
    origin: str = ""
    """The task that this one repeats or adjudicates."""
    reserved: str = ""
    """Names of the annotators it is meant for, with commas between them; empty: anybody."""
    round: str = ""
    """Tells apart tasks that ask the same thing again, such as the anchors of a week."""
    project: str = DEFAULT
    """Where in its store it is asked: its members alone see it."""

    def __post_init__(self) -> None:
        responses = len(self.item.responses)
        if self.form not in JUDGEMENT:
            raise FeedbackError(f"form={self.form!r}; use one of: {', '.join(JUDGEMENT)}")
        if self.form == "pair" and responses != 2:
            raise FeedbackError(f"a pair has 2 responses, not {responses}; ask a ranking or a rating")
        if self.form == "ranking" and responses < 2:
            raise FeedbackError("a ranking needs at least 2 responses; ask a rating")
        if self.overlap < 0 or (self.overlap == 0 and self.purpose != "gold"):
            raise FeedbackError(f"overlap={self.overlap}; give at least 1 (0, no limit, is for gold tasks)")
        if (self.purpose == "gold") != (self.gold is not None):
            raise FeedbackError("a gold task, and no other, needs gold={…}, the right judgement")
        if not self.axes or len(set(self.axes)) < len(self.axes):
            raise FeedbackError(f"axes: {', '.join(self.axes) or 'none'}; name at least one, and each once")
        if not -math.inf < self.scale[0] < self.scale[1] < math.inf:
            raise FeedbackError(f"scale: {self.scale[0]:g} to {self.scale[1]:g}; give the lowest rating, then a higher one")
        if self.form == "correction" and (responses != 1 or not self.item.texts[0]):
            raise FeedbackError(f"a correction is of 1 response with a text, not of {responses}")
        if self.purpose == "repeat" and len(self.people) != 1:
            raise FeedbackError("a repeat is reserved for one annotator")
        if self.people and self.overlap > len(self.people):
            raise FeedbackError(f"overlap={self.overlap} for {len(self.people)} people ({self.reserved}); each answers once")

    @property
    def people(self) -> tuple[str, ...]:
        """Whom it is meant for; nobody: anybody."""
        return tuple(self.reserved.split(",")) if self.reserved else ()

    @cached_property
    def id(self) -> str:
        return digest(self.plain())[:32]

    @classmethod
    def of(cls, fields: Mapping[str, Any], item: Item) -> Task:
        """The task of :meth:`plain` fields, about an item."""
        return cls(**{**fields, "item": item, "axes": tuple(fields["axes"]), "scale": tuple(fields["scale"])})

    def plain(self) -> dict[str, Any]:
        """The task's fields with the item as its name; without a project it is one of the default, as in older stores."""
        gold = None if self.gold is None else dict(self.gold)
        made = {**vars_of(self), "item": self.item.id, "axes": list(self.axes), "scale": list(self.scale), "gold": gold}
        return made if self.project != DEFAULT else {name: made[name] for name in made if name != "project"}


@dataclass(frozen=True)
class Annotator:
    """Somebody who judges. Simulated ones, automated judges and imported labels are marked for ever as what they are."""

    name: str
    role: Role = "annotator"
    nature: Nature = "human"
    attributes: Mapping[str, str] = field(default_factory=dict)
    """Groups that the annotator chose to state, for group-wise accuracy."""
    password: str = ""
    """A password's salted hash as the service made it; empty: no sign-in by password."""
    invite: str = ""
    """Hash of an invite's secret; empty: none is open."""
    enabled: bool = True
    quota: int = 0
    """Answers that they may give; 0: as the queue's policy has it."""

    def __post_init__(self) -> None:
        require_name(self.name, "annotator")
        if not 0 <= self.quota <= 10**9:
            raise FeedbackError(f"quota={self.quota}; give 0 (as everybody) or the answers at most")
        if self.role not in ROLES:
            raise FeedbackError(f"role={self.role!r:.40}; use one of: {', '.join(ROLES)}")


@dataclass(frozen=True)
class Lease:
    """A seat at a task until a deadline (seconds of the store's clock) and the order in which the responses are shown."""

    task: str
    annotator: str
    order: tuple[int, ...]
    """``order[place]`` is the index of the response shown at that place."""
    granted: float
    deadline: float


@dataclass(frozen=True)
class Submission:
    """What an annotator sends. ``key`` names the act: sent again it does nothing, with other content it is refused."""

    kind: Kind
    task: str
    annotator: str
    key: str
    body: Mapping[str, Any] = field(default_factory=dict)
    latency: float | None = None
    """Seconds that the annotator looked at the task, measured by the page; None: since the lease was granted."""
    guideline: str = ""
    """Version of the guideline that they read; empty: the task's."""


@dataclass(frozen=True)
class Event:
    """One line of the log. ``sequence`` counts from 1 without gaps, in the order in which events became durable."""

    sequence: int
    key: str
    time: float
    kind: Kind
    task: str
    """Empty where the event is about a person (:data:`EXCLUSIONS`)."""
    annotator: str
    target: int
    """The event that is taken back; 0 for none."""
    body: Mapping[str, Any]
    order: tuple[int, ...]
    """Which response was shown at each place; empty where nothing was shown."""
    latency: float
    """Seconds from showing to sending; -1 where unknown."""
    guideline: str
    project: str = DEFAULT
    """Its task's; of an exclusion the one that it is about, empty for all."""
