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
from penstock.data.render import read_messages
from penstock.feedback.bodies import STRONGEST
from penstock.feedback.errors import FeedbackError
from penstock.feedback.exchange.snapshot import Snapshot
from penstock.feedback.judgements import comparisons
from penstock.feedback.records import Item, Response, Submission, Task, digest

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


def from_trl(rows: Sequence[Mapping[str, Any]], annotator: str) -> Imported:
    """Pairs of TRL's preference format, standard or conversational, with explicit or implicit prompt, as votes.

    Raises:
        FeedbackError: a row is not of this format; names it.
    """
    texts = [trl_texts(row, f"row {number}") for number, row in enumerate(rows)]
    return [as_vote(*three, annotator, f"trl/{number}") for number, three in enumerate(texts)]


def trl_texts(row: Mapping[str, Any], where: str) -> tuple[str, str, str]:
    """Prompt, chosen and rejected of a row of TRL's preference format.

    Raises:
        FeedbackError: the row is not of this format.
    """
    chosen, rejected = row.get("chosen"), row.get("rejected")
    if isinstance(chosen, str) and isinstance(rejected, str) and "prompt" not in row:
        shared = _common_start(chosen, rejected)
        return chosen[:shared], chosen[shared:], rejected[shared:]
    prompt = row.get("prompt") if "prompt" in row or not isinstance(chosen, list | tuple) else chosen[:-1]
    try:
        return text_of(prompt, "prompt"), text_of(chosen, "chosen", last=True), text_of(rejected, "rejected", last=True)
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
    return "\n\n".join(turn["content"] if len(turns) == 1 else f"{turn['role']}: {turn['content']}" for turn in turns)


def _common_start(first: str, second: str) -> int:
    """Characters that both texts begin with, up to the last space, so that no word is cut in two."""
    shared = next((at for at, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second)))
    return first.rfind(" ", 0, shared) + 1 if shared else 0


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
        item = taken.tasks[name].item
        texts = {field: response.text for field, response in zip(layout.responses, item.responses, strict=True)}
        record = {"id": name, "fields": {layout.prompt: item.prompt, **texts}, "responses": {layout.question: votes}}
        records.append({**record, "metadata": dict(item.groups), "suggestions": {}, "vectors": {}})
    return records


def from_argilla(records: Sequence[Mapping[str, Any]], layout: ArgillaLayout | None = None) -> Imported:
    """Records with a label (the better field, or a tie), a ranking (fields from best to worst) or a rating as votes.

    A rating is of the first response field alone. Annotators keep their user ids.

    Raises:
        FeedbackError: a record lacks a field, or an answer is none of these; names the record.
    """
    layout = layout or ArgillaLayout()
    found: Imported = []
    for number, record in enumerate(records):
        where = f"record {record.get('id', number)}"
        fields, answers = record.get("fields", {}), record.get("responses", {}).get(layout.question, [])
        rated = bool(answers) and isinstance(answers[0].get("value"), int | float)
        names = layout.responses[:1] if rated else layout.responses
        missing = [name for name in (layout.prompt, *names) if not isinstance(fields.get(name), str)]
        if missing:
            raise FeedbackError(f"{where}: no text field {missing[0]!r}; it has {', '.join(fields)}; name yours in the layout")
        item = Item(fields[layout.prompt], tuple(Response(fields[name], source="imported") for name in names), where)
        form = "rating" if rated else "pair" if len(names) == 2 else "ranking"
        scale = (0.0, 10.0) if rated else (1.0, 7.0)
        task = Task(item=item, form=form, overlap=max(1, len(answers)), scale=scale, guideline="imported")  # type: ignore[arg-type]
        said = []
        for answer in answers:
            kind, body = _argilla_body(answer.get("value"), task, layout, where)
            who = str(answer.get("user_id", "argilla"))
            said.append(Submission(kind, task.id, who, f"import:{who}:{task.id}", body))  # type: ignore[arg-type]
        found.append((task, said))
    return found


def argilla_row(record: Mapping[str, Any], where: str) -> Row:
    """A record as a question: of its text fields ``prompt`` (or the first one) is the prompt, the others are the responses.

    Its answers are left out; a known one may lie in the metadata's ``gold``.

    Raises:
        FeedbackError: fewer than two text fields.
    """
    fields = {name: text for name, text in (record.get("fields") or {}).items() if isinstance(text, str | list)}
    prompt = "prompt" if "prompt" in fields else next(iter(fields), "")
    if len(fields) < 2:
        raise FeedbackError(f"{where}: the text fields {[*fields]}; a record of Argilla has a prompt and at least one response")
    metadata = record.get("metadata") or {}
    groups = {name: value for name, value in metadata.items() if isinstance(value, str) and name != "gold"}
    row = {"prompt": fields.pop(prompt), "responses": list(fields.values()), "groups": groups}
    return row | {name: metadata[name] for name in ("gold",) if name in metadata}


def _argilla_body(value: Any, task: Task, layout: ArgillaLayout, where: str) -> tuple[str, Row]:
    names = list(layout.responses)
    if task.form == "rating" and isinstance(value, int | float):
        return "rating", {"scores": {"overall": [value]}}
    if isinstance(value, str) and task.form == "pair" and value in (*names, layout.tie):
        return "vote", {"preference": 0 if value == layout.tie else 1 if value == names[0] else -1}
    if isinstance(value, list):
        ordered = [entry["value"] if isinstance(entry, Mapping) else entry for entry in value]
        given = {entry["value"]: entry["rank"] for entry in value if isinstance(entry, Mapping) and "rank" in entry}
        ranks = given or {name: place + 1 for place, name in enumerate(ordered)}
        if sorted(ordered) == sorted(names):
            if task.form == "ranking":
                return "ranking", {"ranks": [ranks[name] for name in names]}
            gap = ranks[names[1]] - ranks[names[0]]
            return "vote", {"preference": max(-STRONGEST, min(STRONGEST, gap))}
    raise FeedbackError(f"{where}: {value!r:.60} is no answer to {layout.question!r}; expected one of {', '.join(names)}")
