"""Questions of one's own, from rows of a file to tasks for people: all rows are checked before anything is written.

Columns: ``prompt``, a text or a list of chat messages; and either ``responses`` (a list; in CSV ``response_1``,
``response_2`` …), or ``chosen`` and ``rejected`` (TRL's preference format, whose choice is no vote), or ``response``. Besides
``gold``, the known answer; ``models``, what wrote each response; ``groups``, values to report by; ``key``; and images, sounds
and videos by paths: ``prompt_media``, and ``media``, one entry a response (a path, a list of them, or nothing).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from penstock.core.blobs import Blob
from penstock.core.errors import PenstockError
from penstock.feedback import bodies, projects, schema
from penstock.feedback.errors import FeedbackError
from penstock.feedback.exchange.files import Row, placed_rows
from penstock.feedback.exchange.formats import argilla_row, swapped, text_of, trl_texts
from penstock.feedback.exchange.media import MOST, Media
from penstock.feedback.records import DEFAULT, JUDGEMENT, Form, Item, Response, Task
from penstock.feedback.rows import ReadBlob

if TYPE_CHECKING:
    from penstock.feedback.store import Store

MOST_ROWS = 50_000
"""Rows of one file: they are written in one transaction, for which votes wait."""
COLUMNS = frozenset(
    {
        "prompt", "responses", "response", "chosen", "rejected", "gold", "models", "model", "groups", "key",
        "media", "prompt_media",
    }
)  # fmt: skip
NUMBERED = re.compile(r"(response|model|media)[_ ]?(\d{1,3}|[a-z])")
"""Columns of CSV that are one list: ``response_1``, ``model_b``."""
FORM_OF = {1: "rating", 2: "pair"}
"""The form of a question with so many responses, where none is named; of more it is a ranking."""


@dataclass(frozen=True)
class Asking:
    """How rows are asked."""

    form: Form | None = None
    """None: by what each row holds."""
    overlap: int = 3
    axes: tuple[str, ...] = ("overall",)
    scale: tuple[float, float] = (1.0, 7.0)
    gold: bool = False
    """Every row has a known answer, in ``gold`` or by ``chosen``, and measures people."""
    to: tuple[str, ...] = ()
    """The people who alone are asked; nobody: everybody."""
    round: str = ""
    """A new name asks again what was asked before."""
    guideline: str = "1"
    project: str = DEFAULT


@dataclass(frozen=True)
class Questions:
    """What a file asks."""

    tasks: tuple[Task, ...]
    same: int
    """Rows that ask what another row asks."""
    unused: tuple[str, ...]
    """Columns that say nothing here."""
    read: ReadBlob | None = None
    """Gives the bytes of their images, sounds and videos."""


def ask_file(store: Store, path: Path, asking: Asking, *, argilla: bool = False, check: bool = False) -> tuple[int, Questions]:
    """Put the questions of a file to people (with ``check``: only read them); gives how many are new, and what was read.

    Raises:
        DataError, FeedbackError: the first row that cannot be asked, as ``FILE:LINE``; nothing was written.
    """
    rows = placed_rows(path)
    rows = [(place, argilla_row(row, place)) for place, row in rows] if argilla else rows
    found = questions(rows, asking, Media(path.parent))
    return 0 if check else ask(store, found.tasks, found.read), found


def ask_text(
    store: Store, name: str, text: str, asking: Asking, *, argilla: bool = False, check: bool = False
) -> tuple[int, Questions]:
    """:func:`ask_file` of what a file of this name holds, for uploads; with ``check`` nothing is written."""
    suffix = Path(name).suffix
    if suffix not in (".jsonl", ".json", ".csv"):
        raise FeedbackError(f"{name[:100]}: give .jsonl, .json or .csv; Parquet goes by penstock feedback ask")
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"upload{suffix}"
        path.write_bytes(text.encode())
        try:
            return ask_file(store, path, asking, argilla=argilla, check=check)
        except PenstockError as error:
            raise FeedbackError(str(error).replace(str(path), name[:100])) from error


def ask(store: Store, tasks: Sequence[Task], read: ReadBlob | None = None) -> int:
    """Add those tasks that ask what no task of the same form, purpose, readers and round asks already; gives how many.

    Raises:
        FeedbackError: somebody they are meant for is not a person of this store, or no member of the project; nothing was
            written.
    """
    people = {who.name for who in store.annotators() if who.nature == "human" and who.enabled}
    with store.database.read() as connection:
        members = {project: projects.members(connection, project) for project in {task.project for task in tasks}}
    for name, project in dict.fromkeys((name, task.project) for task in tasks for name in task.people):
        if name not in people:
            raise FeedbackError(f"{name}: no such person in this store; penstock feedback enrol adds one")
        if name not in members[project]:
            raise FeedbackError(f"{name}: no member of project {project}; penstock feedback project adds them")
    purposes = {task.purpose for task in tasks}
    query = sa.select(schema.tasks.c.body, schema.items.c.body).join(schema.items, schema.items.c.id == schema.tasks.c.item)
    here = schema.tasks.c.project.in_(members)
    with store.database.read() as connection:
        there = {
            _identity(json.loads(task), json.loads(item))
            for task, item in connection.execute(query.where(here, schema.tasks.c.purpose.in_(purposes)))
        }
    new = {_identity(task.plain(), task.item.plain()): task for task in reversed(tasks)}
    return len(store.ask([task for identity, task in reversed(new.items()) if identity not in there], read))


def _identity(task: Mapping[str, Any], item: Mapping[str, Any]) -> tuple[Any, ...]:
    """What makes a question the same one, from the fields of a task and its item."""
    return (
        *(task.get(name, DEFAULT) for name in ("form", "purpose", "reserved", "round", "project")), tuple(task["axes"]),
        item["prompt"], tuple(sorted(item["responses"])), tuple(blob["hash"] for blob in item.get("blobs", ())),
    )  # fmt: skip


def questions(rows: Sequence[tuple[str, Row]], asking: Asking, media: Media | None = None) -> Questions:
    """The tasks of rows, each with its place for errors; ``media`` is what paths in them refer to.

    Raises:
        DataError, FeedbackError: the first row that cannot be asked; says where, what and how to mend it.
    """
    if not 0 < len(rows) <= MOST_ROWS:
        raise FeedbackError(f"{len(rows)} rows; a file holds 1 to {MOST_ROWS}")
    kept: dict[tuple[Any, ...], tuple[str, Task]] = {}
    for where, row in rows:
        try:
            task = _task(where, {name: value for name, value in row.items() if value is not None}, asking, media)
        except PenstockError as error:
            raise error if str(error).startswith(where) else FeedbackError(f"{where}: {error}") from error
        identity = _identity(task.plain(), task.item.plain())
        first, other = kept.setdefault(identity, (where, task))
        if task.item == other.item and task.gold != other.gold:
            raise FeedbackError(f"{where}: another known answer than {first} to the same question; take one of them out")
    columns = {name for _, row in rows for name in row if name not in COLUMNS and not NUMBERED.fullmatch(name)}
    read = media.read if media else None
    return Questions(tuple(task for _, task in kept.values()), len(rows) - len(kept), tuple(sorted(columns)), read)


def _task(where: str, row: Row, asking: Asking, media: Media | None) -> Task:
    seen = [_blobs(one, media) for one in _list(row, "media")]
    prompt, texts, best = _texts(where, row, len(seen))
    seen = seen or [()] * len(texts)
    if len(seen) != len(texts):
        raise FeedbackError(f"media has {len(seen)} entries for {len(texts)} responses; give one a response, null for none")
    if not prompt.strip() or not all(text.strip() or blobs for text, blobs in zip(texts, seen, strict=True)):
        raise FeedbackError("prompt and responses must be texts that are not empty (a response may be media alone)")
    if len(texts) > 1 and len(set(zip(texts, seen, strict=True))) < len(texts):
        raise FeedbackError("two responses are the same; take one of them out")
    models = _list(row, "model") or [""] * len(texts)
    if len(models) != len(texts) or not all(isinstance(name, str) and len(name) <= 200 for name in models):
        raise FeedbackError(f"models={models!r:.80}; give {len(texts)} names, one a response")
    if best is not None and swapped(prompt, *texts):
        texts, models, seen, best = texts[::-1], models[::-1], seen[::-1], 1
    groups = _parsed(row.get("groups", {}))
    if not isinstance(groups, Mapping) or not all(isinstance(value, str) for value in groups.values()):
        raise FeedbackError(f'groups={groups!r:.60}; give an object of texts, such as {{"language": "en"}}')
    parts = zip(texts, models, seen, strict=True)
    responses = tuple(Response(text, source=name, blobs=blobs) for text, name, blobs in parts)
    task = Task(
        item=Item(prompt, responses, str(row.get("key", "")), dict(groups), _blobs(row.get("prompt_media"), media)),
        form=asking.form or FORM_OF.get(len(texts), "ranking"),  # type: ignore[arg-type]
        overlap=1 if asking.gold else asking.overlap,
        axes=asking.axes,
        scale=asking.scale,
        guideline=asking.guideline,
        reserved=",".join(asking.to),
        round=asking.round,
        project=asking.project,
    )
    if asking.gold:
        given = row.get("gold", None if best is None else best + 1)
        return replace(task, purpose="gold", overlap=0, gold=known_answer(task, given))
    if "gold" in row:
        raise FeedbackError("it has a known answer in the column gold; ask with --gold, or take the column out")
    return task


def known_answer(task: Task, given: Any) -> dict[str, Any]:
    """The right judgement of a task from how people write it.

    Of a pair: the text of the better response, its number from 1 on, or ``tie``; of a ranking a list of ranks; of a rating
    one number, or one for each axis; or the body of a judgement.

    Raises:
        FeedbackError: nothing, or no answer to such a question.
    """
    value, texts = _parsed(given), task.item.texts
    if task.form == "correction" or value is None:
        raise FeedbackError("a gold question needs its answer in the column gold (or chosen); a correction has none")
    if task.form == "pair" and not isinstance(value, Mapping):
        value = given if given in texts else value  # a response may be a number
        sides = {1: 1, 2: -1, "tie": 0} | ({texts[0]: 1, texts[1]: -1} if texts[0] != texts[1] else {})
        if isinstance(value, list | float) or value not in sides:
            raise FeedbackError(f"gold={value!r:.60}; give 1 or 2 for the better response, its text, or tie")
        value = {"preference": sides[value]}
    elif task.form == "ranking" and isinstance(value, list):
        value = {"ranks": value}
    elif task.form == "rating" and not (isinstance(value, Mapping) and "scores" in value):
        axes = value if isinstance(value, Mapping) else dict.fromkeys(task.axes, value)
        value = {"scores": {axis: one if isinstance(one, list) else [one] for axis, one in axes.items()}}
    if not isinstance(value, Mapping):
        raise FeedbackError(f"gold={value!r:.60}; give the right {JUDGEMENT[task.form]}")
    return bodies.check(JUDGEMENT[task.form], value, task)


def _blobs(given: Any, media: Media | None) -> tuple[Blob, ...]:
    """What a cell of ``media`` refers to: a path, a list of them (in CSV as JSON), or nothing."""
    paths = _parsed(given)
    paths = paths if isinstance(paths, list) else [] if paths in (None, "") else [paths]
    if paths and media is None:
        raise FeedbackError("media are paths in a file of questions; ask with ask_file")
    if len(paths) > MOST:
        raise FeedbackError(f"{len(paths)} media in one place; {MOST} is the most")
    return tuple(media.add(path) for path in paths) if media else ()


def _texts(where: str, row: Row, media: int) -> tuple[str, list[str], int | None]:
    """The prompt, the responses, and which of them the row says is better; of ``media`` alone the texts are empty."""
    if "chosen" in row and "rejected" in row:
        given = {name: _messages(value) for name, value in row.items() if name in ("prompt", "chosen", "rejected")}
        prompt, *both = trl_texts(given, where)
        return prompt, both, 0
    responses = _list(row, "response") or [""] * media
    if "prompt" not in row or not responses:
        raise FeedbackError(
            f"it has {', '.join(row) or 'nothing'}; give prompt, and responses (a list), chosen and rejected, or response"
        )
    return text_of(_messages(row["prompt"]), where), [text_of(_messages(one), where, last=True) for one in responses], None


def _list(row: Row, name: str) -> list[Any]:
    """The column ``names``, or ``name``, or ``name_1``, ``name_2`` … as a list; ``media`` is a plural itself."""
    several = name if name == "media" else f"{name}s"
    if several in row:
        found = _parsed(row[several])
        return found if isinstance(found, list) else [found]
    if name in row:
        return [row[name]]
    numbered = {match[2]: value for column, value in row.items() if (match := NUMBERED.fullmatch(column)) and match[1] == name}
    return [numbered[place] for place in sorted(numbered, key=lambda place: (len(place), place))]


def _parsed(value: Any) -> Any:
    """The list, object or number that a text (a cell of CSV, a text in Parquet) is in JSON; otherwise the value."""
    if isinstance(value, str) and value.strip()[:1] in "[{-0123456789":
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def _messages(value: Any) -> Any:
    """Chat messages where a text holds them; otherwise the value: a text that is any other JSON is a text."""
    found = _parsed(value) if isinstance(value, str) and value.lstrip().startswith("[") else value
    turns = isinstance(found, list) and found and all(isinstance(one, dict) and "role" in one for one in found)
    return found if turns else value
