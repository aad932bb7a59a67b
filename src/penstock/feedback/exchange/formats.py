"""The formats of TRL and Argilla, read and written.

TRL: rows with ``prompt``, ``chosen``, ``rejected`` (preference) or ``prompt``, ``completion``, ``label`` (unpaired), each text
or a list of messages. Our rows are TRL's standard format as they are; :func:`to_trl` makes the conversational one.

Argilla: records as its ``records.to_json`` writes them, ``{"id", "fields", "responses": {QUESTION: [{"value", "user_id"}]}}``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.feedback.bodies import STRONGEST
from penstock.feedback.errors import FeedbackError
from penstock.feedback.exchange.snapshot import Snapshot
from penstock.feedback.judgements import comparisons
from penstock.feedback.records import Annotator, Item, Response, Submission, Task, digest

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
    found: Imported = []
    for number, row in enumerate(rows):
        try:
            prompt, chosen, rejected = texts = _trl_texts(row)
            if not all(isinstance(text, str) for text in texts):
                raise TypeError("prompt, chosen and rejected must be texts")
        except (AttributeError, KeyError, TypeError, IndexError) as error:
            raise FeedbackError(f"row {number}: not of TRL's preference format ({error!r}); it has {', '.join(row)}") from error
        found.append(as_vote(prompt, chosen, rejected, annotator, f"trl/{number}"))
    return found


def _trl_texts(row: Mapping[str, Any]) -> tuple[str, str, str]:
    chosen, rejected = row["chosen"], row["rejected"]
    if isinstance(chosen, str) and "prompt" in row:
        return row["prompt"], chosen, rejected
    if isinstance(chosen, str):
        shared = _common_start(chosen, rejected)
        return chosen[:shared], chosen[shared:], rejected[shared:]
    turns = row["prompt"] if "prompt" in row else chosen[:-1]
    prompt = "\n\n".join(turn["content"] if len(turns) == 1 else f"{turn['role']}: {turn['content']}" for turn in turns)
    return prompt, chosen[-1]["content"], rejected[-1]["content"]


def _common_start(first: str, second: str) -> int:
    """Characters that both texts begin with, up to the last space, so that no word is cut in two."""
    shared = next((at for at, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second)))
    return first.rfind(" ", 0, shared) + 1 if shared else 0


def as_vote(
    prompt: str, chosen: str, rejected: str, annotator: str, key: str, groups: Mapping[str, str] | None = None
) -> tuple[Task, list[Submission]]:
    """A task and its one vote. Which response comes first is chosen by the content: else the first would always win."""
    swap = int(digest([prompt, chosen, rejected])[0], 16) % 2 == 1
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


def to_argilla(taken: Snapshot, layout: ArgillaLayout | None = None) -> list[Row]:
    """Records of all pair tasks with their votes as labels: the name of the better field, or the tie's."""
    layout = layout or ArgillaLayout()
    said: dict[str, list[Row]] = {name: [] for name, task in taken.tasks.items() if task.form == "pair" and not task.origin}
    for comparison in comparisons(taken.state.judgements(), taken.tasks):
        if comparison.task in said:
            value = (layout.tie, layout.responses[0], layout.responses[1])[comparison.sign]
            said[comparison.task].append({"value": value, "user_id": comparison.annotator})
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


def annotators_of(imported: Imported) -> list[Annotator]:
    """Everybody who speaks in imported submissions, marked as imported."""
    names = sorted({submission.annotator for _, said in imported for submission in said})
    return [Annotator(name, nature="imported") for name in names]
