"""The formats of TRL and Argilla, read and written.

TRL: rows with ``prompt``, ``chosen``, ``rejected`` (preference) or ``prompt``, ``completion``, ``label`` (unpaired), each text
or a list of messages. Our rows are TRL's standard format as they are; :func:`to_trl` makes the conversational one.

Argilla: records as its ``records.to_json`` writes them, ``{"id", "fields", "responses": {QUESTION: [{"value", "user_id"}]}}``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.core.errors import DataError
from penstock.core.messages import read_messages
from penstock.data.layouts import arranged
from penstock.feedback.bodies import STRONGEST, check
from penstock.feedback.errors import FeedbackError
from penstock.feedback.exchange.snapshot import Snapshot
from penstock.feedback.judgements import comparisons
from penstock.feedback.records import JUDGEMENT, Item, Response, Submission, Task, digest

Row = dict[str, Any]
Imported = list[tuple[Task, list[Submission]]]
"""Tasks and what was said of each; ``imports.load`` puts them into a store."""


def to_trl(rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Rows of an export in TRL's conversational format: every text a message; other columns stay as they are."""
    roles = {"prompt": "user", "chosen": "assistant", "rejected": "assistant", "completion": "assistant"}
    return [
        {name: [{"role": roles[name], "content": value}] if name in roles else value for name, value in row.items()}
        for row in rows
    ]


def from_trl(rows: Sequence[tuple[str, Mapping[str, Any]]], annotator: str) -> Imported:
    """Pairs of TRL's preference format, standard or conversational, with explicit or implicit prompt, as votes.

    Raises:
        FeedbackError: a row is not of this format; says its place, which comes with it.
    """
    texts = [trl_texts(row, where) for where, row in rows]
    return [as_vote(*three, annotator, f"trl/{number}") for number, three in enumerate(texts)]


def trl_texts(row: Mapping[str, Any], where: str) -> tuple[str, str, str]:
    """Prompt, chosen and rejected of a row of TRL's preference format. Raises FeedbackError: the row is not of this format."""
    try:
        row = arranged(row, False, where)
        chosen, rejected = (text_of(row.get(name), name, last=True) for name in ("chosen", "rejected"))
        return text_of(row.get("prompt"), "prompt"), chosen, rejected
    except DataError as error:
        raise FeedbackError(f"{where}: not of TRL's preference format ({error}); it has {', '.join(row)}") from error


def text_of(value: Any, where: str, *, last: bool = False) -> str:
    """The text of a prompt or response: as it is, or of chat messages, ``role: content`` each where there are several.

    With ``last`` only the last message counts: a response that repeats its conversation.

    Raises:
        DataError: neither a text nor messages.
    """
    if isinstance(value, str):
        return value
    turns = read_messages(value, where)[-1:] if last else read_messages(value, where)
    if lacking := [place for place, turn in enumerate(turns) if "content" not in turn]:
        raise DataError(f"{where}[{lacking[0]}] has no content, and people are asked about texts")
    return "\n\n".join(turn["content"] if len(turns) == 1 else f"{turn['role']}: {turn['content']}" for turn in turns)


def swapped(prompt: str, chosen: str, rejected: str) -> bool:
    """Whether the rejected response comes first: chosen by the content, else the first would always win."""
    return int(digest([prompt, chosen, rejected])[0], 16) % 2 == 1


def as_vote(
    prompt: str, chosen: str, rejected: str, annotator: str, key: str, groups: Mapping[str, str] | None = None
) -> tuple[Task, list[Submission]]:
    """A task and its one vote."""
    swap = swapped(prompt, chosen, rejected)
    texts = (rejected, chosen) if swap else (chosen, rejected)
    item = Item(prompt, tuple(Response(text, source="imported") for text in texts), key, groups or {})
    task = Task(item=item, overlap=1, guideline="imported")
    body = {"preference": -1 if swap else 1}
    return task, [Submission("vote", task.id, annotator, f"import:{annotator}:{task.id}", body)]


@dataclass(frozen=True)
class ArgillaLayout:
    """Names of the fields and of the question in Argilla's records."""

    prompt: str = "prompt"
    responses: tuple[str, ...] = ("response1", "response2")
    question: str = "preference"
    tie: str = "tie"
    """The label that says neither."""


def to_argilla(taken: Snapshot, layout: ArgillaLayout | None = None, named: Callable[[str], str] = str) -> list[Row]:
    """Records of all pair tasks with their votes as labels: the name of the better field, or the tie's.

    ``named`` gives the user id of an annotator.
    """
    layout = layout or ArgillaLayout()
    said: dict[str, list[Row]] = {name: [] for name, task in taken.tasks.items() if task.form == "pair" and not task.origin}
    for comparison in comparisons(taken.state.judgements(), taken.tasks):
        if comparison.task.id in said:
            value = (layout.tie, layout.responses[0], layout.responses[1])[comparison.sign]
            said[comparison.task.id].append({"value": value, "user_id": named(comparison.annotator)})
    records = []
    for name, votes in said.items():
        if taken.tasks[name].purpose == "gold" and not votes:  # nobody was asked
            continue
        item = taken.tasks[name].item
        texts = {field: response.text for field, response in zip(layout.responses, item.responses, strict=True)}
        record = {"id": name, "fields": {layout.prompt: item.prompt, **texts}, "responses": {layout.question: votes}}
        records.append({**record, "metadata": dict(item.groups), "suggestions": {}, "vectors": {}})
    return records


def from_argilla(rows: Sequence[tuple[str, Mapping[str, Any]]], layout: ArgillaLayout | None = None) -> Imported:
    """Records with a label (the better field, or a tie), a ranking (fields from best to worst) or a rating as votes.

    A rating is of the first response field alone. Annotators keep their user ids.

    Raises:
        FeedbackError: a record lacks a field, or an answer is none of these; says its place, which comes with it.
    """
    return [_imported(where, number, record, layout or ArgillaLayout()) for number, (where, record) in enumerate(rows)]


def _imported(where: str, number: int, record: Mapping[str, Any], layout: ArgillaLayout) -> tuple[Task, list[Submission]]:
    """A record as a task and what was said of it."""
    fields, answers = _object(record, "fields", where), _object(record, "responses", where).get(layout.question) or []
    if not isinstance(answers, list) or not all(isinstance(answer, Mapping) for answer in answers):
        raise FeedbackError(f'{where}: answers={answers!r:.60}; Argilla has a list of {{"value": …, "user_id": …}}')
    rated = bool(answers) and type(answers[0].get("value")) in (int, float)
    names = layout.responses[:1] if rated else layout.responses
    missing = [name for name in (layout.prompt, *names) if not isinstance(fields.get(name), str)]
    if missing:
        raise FeedbackError(f"{where}: no text field {missing[0]!r}; it has {', '.join(fields)}; name yours in the layout")
    key, texts = f"record {record.get('id', number)}", tuple(Response(fields[name], source="imported") for name in names)
    item = Item(fields[layout.prompt], texts, key)
    form = "rating" if rated else "pair" if len(names) == 2 else "ranking"
    scale = (0.0, 10.0) if rated else (1.0, 7.0)
    task = Task(item=item, form=form, overlap=max(1, len(answers)), scale=scale, guideline="imported")  # type: ignore[arg-type]
    said: dict[str, Submission] = {}
    for answer in answers:
        kind, body = _argilla_body(answer.get("value"), task, layout, where)
        who = str(answer.get("user_id") or "argilla")
        if who in said:
            raise FeedbackError(f"{where}: {key} has two answers by user {who:.60}; keep one of them")
        said[who] = Submission(kind, task.id, who, f"import:{who}:{task.id}", body)  # type: ignore[arg-type]
    return task, list(said.values())


def _object(record: Mapping[str, Any], name: str, where: str) -> Mapping[str, Any]:
    """What a record has under a name, an object; an empty one for nothing. Raises FeedbackError."""
    found = {} if record.get(name) is None else record[name]
    if not isinstance(found, Mapping):
        raise FeedbackError(f"{where}: {name}={found!r:.60}; in a record of Argilla it is an object")
    return found


def argilla_row(record: Mapping[str, Any], where: str) -> Row:
    """A record as a question: of its text fields ``prompt`` (or the first one) is the prompt, the others are the responses.

    Its answers are left out; a known one may lie in the metadata's ``gold``.

    Raises:
        FeedbackError: fewer than two text fields, or fields or metadata that are no objects.
    """
    fields = {name: text for name, text in _object(record, "fields", where).items() if isinstance(text, str | list)}
    prompt = "prompt" if "prompt" in fields else next(iter(fields), "")
    if len(fields) < 2:
        raise FeedbackError(f"{where}: the text fields {[*fields]}; a record of Argilla has a prompt and at least one response")
    metadata = _object(record, "metadata", where)
    groups = {name: value for name, value in metadata.items() if isinstance(value, str) and name != "gold"}
    row = {"prompt": fields.pop(prompt), "responses": list(fields.values()), "groups": groups}
    return row | {name: metadata[name] for name in ("gold",) if name in metadata}


def _argilla_body(value: Any, task: Task, layout: ArgillaLayout, where: str) -> tuple[str, Row]:
    names, kind, body = list(layout.responses), JUDGEMENT[task.form], Row()
    why = f"{where}: {value!r:.60} is no answer to {layout.question!r}; expected one of {', '.join(names)}"
    if task.form == "rating":
        body = {"scores": {"overall": [value]}}
    elif isinstance(value, str) and task.form == "pair" and value in (*names, layout.tie):
        body = {"preference": 0 if value == layout.tie else 1 if value == names[0] else -1}
    elif isinstance(value, list):
        entries = [entry if isinstance(entry, Mapping) else {"value": entry} for entry in value]
        ranks = {str(entry.get("value")): entry.get("rank", place) for place, entry in enumerate(entries, 1)}
        alike = len({"rank" in entry for entry in entries}) == 1 and all(type(rank) is int for rank in ranks.values())
        if not alike or len(entries) != len(names) or ranks.keys() != set(names):
            raise FeedbackError(why)
        gap = ranks[names[1]] - ranks[names[0]]
        pair = {"preference": max(-STRONGEST, min(STRONGEST, gap))}
        body = {"ranks": [ranks[name] for name in names]} if task.form == "ranking" else pair
    try:
        return kind, check(kind, body, task)
    except FeedbackError as error:
        raise FeedbackError(why) from error
