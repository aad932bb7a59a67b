"""Questions of one's own, from rows of a file to tasks for people: all rows are checked before anything is written.

Columns: ``prompt``, a text or a list of chat messages; and either ``responses`` (a list; in CSV ``response_1``,
``response_2`` …), or ``chosen`` and ``rejected`` (TRL's preference format, whose choice is no vote), or ``response``. Besides
``gold``, the known answer; ``models``, what wrote each response; ``groups``, values to report by; ``key``; and images, sounds
and videos by paths: ``prompt_media``, and ``media``, one entry a response (a path, a list of them, or nothing).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import sqlalchemy as sa

from penstock.core.blobs import Blob
from penstock.core.errors import PenstockError
from penstock.feedback import bodies, projects, schema
from penstock.feedback.errors import FeedbackError
from penstock.feedback.exchange.files import NUMBERED, Row, placed_rows
from penstock.feedback.exchange.formats import argilla_row, swapped, text_of, trl_texts
from penstock.feedback.exchange.media import MOST, Media
from penstock.feedback.records import DEFAULT, JUDGEMENT, Form, Item, Response, Task, require_names
from penstock.feedback.rows import STORE, ReadBlob
from penstock.feedback.store import Store

MOST_ROWS = 50_000
"""Rows of one file: they are written in one transaction, for which votes wait."""
COLUMNS = frozenset(
    {
        "prompt", "responses", "response", "chosen", "rejected", "gold", "models", "model", "groups", "key",
        "media", "prompt_media",
    }
)  # fmt: skip
MOST_RESPONSES = 26
"""Of one question: the page names them by letters."""
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
    by: str = STORE
    """Who makes gold known."""

    def __post_init__(self) -> None:
        require_names(self.axes, self.round)


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

    @property
    def forms(self) -> str:
        """How many there are of each form, in words."""
        count = Counter(task.form for task in self.tasks)
        return ", ".join(f"{number} {form}{'s' * (number != 1)}" for form, number in count.items())


def ask_file(store: Store, path: Path, asking: Asking, *, argilla: bool = False, check: bool = False) -> tuple[int, Questions]:
    """Put the questions of a file to people (with ``check``: only read them); gives how many are new, and what was read.

    Raises:
        DataError, FeedbackError: the first row that cannot be asked, as ``FILE:LINE``; nothing was written.
    """
    require_people(store, asking.to, asking.project)
    project = store.project(asking.project)
    if project.guideline and asking.guideline not in project.guidelines:
        raise FeedbackError(f"guideline {asking.guideline}: project {project.name} has {', '.join(project.guidelines)}")
    rows = placed_rows(path)
    rows = [(place, argilla_row(row, place)) for place, row in rows] if argilla else rows
    found = questions(rows, asking, Media(path.parent))
    return 0 if check else ask(store, found.tasks, found.read, asking.by), found


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
            raise FeedbackError(str(error).replace(str(path), name[:100]).replace("with --gold", "as gold")) from error


def require_people(store: Store, names: Iterable[str], project: str) -> None:
    """Raises FeedbackError: a name is not a person of this store, or no member of the project."""
    people = {who.name for who in store.annotators() if who.nature == "human" and who.enabled}
    with store.database.read() as connection:
        members = projects.members(connection, project)
    for name in names:
        if name not in people:
            raise FeedbackError(f"{name}: no such person in this store; penstock feedback enrol adds one")
        if name not in members:
            raise FeedbackError(f"{name}: no member of project {project}; penstock feedback project adds them")


def _require_agreement(store: Store, tasks: Iterable[Task]) -> None:
    """Raises FeedbackError: gold in force has another known answer to one of the questions."""
    new = {(task.project, _content(task)): task for task in tasks if task.gold is not None}
    demoted = store.state().demoted if new else set()
    for name in [name for project in {project for project, _ in new} for name in store.tasks("gold", project)]:
        other = store.task(name)
        task = new.get((other.project, _content(other)))
        if task is not None and name not in demoted and _known(task) != _known(other):
            raise FeedbackError(f"gold {name} has another known answer to {task.item.prompt!r:.60}; "
                                f"first take it back (penstock feedback demote STORE {name})")  # fmt: skip


def ask(store: Store, tasks: Sequence[Task], read: ReadBlob | None = None, by: str = STORE) -> int:
    """Add those tasks that ask what no task of the same form, purpose, readers and round asks already; gives how many.

    Raises:
        FeedbackError: somebody they are meant for is not a person of this store, or no member of the project; or gold in force
            has another known answer. Nothing was written.
    """
    members = {task.project for task in tasks}
    for project in members:
        require_people(store, dict.fromkeys(name for task in tasks if task.project == project for name in task.people), project)
    _require_agreement(store, tasks)
    purposes = {task.purpose for task in tasks}
    query = sa.select(schema.tasks.c.body, schema.items.c.body).join(schema.items, schema.items.c.id == schema.tasks.c.item)
    here = schema.tasks.c.project.in_(members)
    with store.database.read() as connection:
        there = {
            _identity(json.loads(task), json.loads(item))
            for task, item in connection.execute(query.where(here, schema.tasks.c.purpose.in_(purposes)))
        }
    new = {_identity(task.plain(), task.item.plain()): task for task in reversed(tasks)}
    return len(store.ask([task for identity, task in reversed(new.items()) if identity not in there], read, by))


def _identity(task: Mapping[str, Any], item: Mapping[str, Any]) -> tuple[Any, ...]:
    """What makes a question the same one, from the fields of a task and its item."""
    return (
        *(task.get(name, DEFAULT) for name in ("form", "purpose", "reserved", "round", "project")), tuple(task["axes"]),
        item["prompt"], tuple(sorted(item["responses"])), tuple(blob["hash"] for blob in item.get("blobs", ())),
    )  # fmt: skip


def _content(task: Task) -> tuple[Any, ...]:
    """What a question shows, in whichever order."""
    prompt, texts = task.item.contents
    return task.form, prompt, tuple(sorted(texts))


def _known(task: Task) -> Mapping[str, Any]:
    """The known answer of gold, as one about its responses in the order of their contents."""
    texts = task.item.contents[1]
    return bodies.as_places(JUDGEMENT[task.form], task.gold or {}, sorted(range(len(texts)), key=texts.__getitem__))


def questions(rows: Sequence[tuple[str, Row]], asking: Asking, media: Media | None = None) -> Questions:
    """The tasks of rows, each with its place for errors; ``media`` is what paths in them refer to.

    Raises:
        DataError, FeedbackError: the first row that cannot be asked; says where, what and how to mend it.
    """
    if not 0 < len(rows) <= MOST_ROWS:
        raise FeedbackError(f"{len(rows)} rows; a file holds 1 to {MOST_ROWS}")
    kept: dict[tuple[Any, ...], tuple[str, Task]] = {}
    known: dict[tuple[Any, ...], tuple[str, Task]] = {}
    for where, row in rows:
        try:
            task = _task(where, row, asking, media)
            identity = _identity(task.plain(), task.item.plain())
        except PenstockError as error:
            raise error if str(error).startswith(where) else FeedbackError(f"{where}: {error}") from error
        kept.setdefault(identity, (where, task))
        first, other = known.setdefault(_content(task), (where, task))
        if task.gold is not None and _known(task) != _known(other):
            raise FeedbackError(f"{where}: another known answer than {first} to the same question; take one of them out")
    columns = {name for _, row in rows for name in row if name not in COLUMNS and not NUMBERED.fullmatch(name)}
    read = media.read if media else None
    return Questions(tuple(task for _, task in kept.values()), len(rows) - len(kept), tuple(sorted(columns)), read)


def _task(where: str, row: Row, asking: Asking, media: Media | None) -> Task:
    # Of a list in numbered columns the places of what is empty stay.
    row = {name: "" if row[name] is None else row[name] for name in row if row[name] is not None or NUMBERED.fullmatch(name)}
    seen = [_blobs(one, media) for one in _list(row, "media")]
    prompt, texts, best = _texts(where, row, len(seen))
    seen = seen or [()] * len(texts)
    if len(seen) != len(texts):
        raise FeedbackError(f"media has {len(seen)} entries for {len(texts)} responses; give one a response, null for none")
    if not prompt.strip() or not all(text.strip() or blobs for text, blobs in zip(texts, seen, strict=True)):
        raise FeedbackError("prompt and responses must be texts that are not empty (a response may be media alone)")
    if len(texts) > MOST_RESPONSES:
        raise FeedbackError(f"{len(texts)} responses; a question has {MOST_RESPONSES} at most")
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
        if isinstance(value, list | float | bool) or value not in sides:
            raise FeedbackError(f"gold={value!r:.60}; give 1 or 2 for the better response, its text, or tie")
        value = {"preference": sides[value]}
    elif task.form == "ranking" and isinstance(value, list):
        value = {"ranks": value}
    elif task.form == "rating" and not (isinstance(value, Mapping) and "scores" in value):
        axes = value if isinstance(value, Mapping) else dict.fromkeys(task.axes, value)
        value = {"scores": {axis: one if isinstance(one, list) else [one] for axis, one in axes.items()}}
    if not isinstance(value, Mapping):  # of a ranking: others are objects by now
        raise FeedbackError(f"gold={value!r:.60}; give a list of ranks such as [2, 1, 3], 1 for the best")
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
    responses = _list(row, "response")
    if "chosen" in row or "rejected" in row:
        if responses:
            raise FeedbackError("it has chosen or rejected besides other responses; keep one of the two")
        given = {name: _messages(value, name) for name, value in row.items() if name in ("prompt", "chosen", "rejected")}
        prompt, *both = trl_texts(given, where)
        return prompt, both, 0
    responses = responses or [""] * media
    if "prompt" not in row or not responses:
        raise FeedbackError(
            f"it has {', '.join(row) or 'nothing'}; give prompt, and responses (a list), chosen and rejected, or response"
        )
    named = [(f"responses[{place}]", one) for place, one in enumerate(responses, 1)]
    texts = [text_of(_messages(one, name), name, last=True) for name, one in named]
    return text_of(_messages(row["prompt"], "prompt"), "prompt"), texts, None


def _list(row: Row, name: str) -> list[Any]:
    """The column ``names``, or ``name``, or ``name_1``, ``name_2`` … as a list; ``media`` is a plural itself."""
    several = name if name == "media" else f"{name}s"
    places = [(int(match[2]) if match[2].isdigit() else ord(match[2]), value) for column, value in row.items()
              if (match := NUMBERED.fullmatch(column)) and match[1] == name]  # fmt: skip
    order = sorted(place for place, _ in places)
    numbered = [value for _, value in sorted(places, key=lambda one: one[0])] if any(value != "" for _, value in places) else []
    given = [column for column in dict.fromkeys((several, name)) if column in row] + [f"{name}_1 …"] * bool(numbered)
    if len(given) > 1:
        raise FeedbackError(f"it has {' and '.join(given)}; keep one of them")
    if order and (order[0] not in (0, 1, ord("a")) or order != list(range(order[0], order[0] + len(order)))):
        raise FeedbackError(f"of the columns {name}_1, {name}_2 … one is missing or there twice; number them without a gap")
    if several in row:
        found = _parsed(row[several])
        if isinstance(found, str) and found.lstrip().startswith("["):
            raise FeedbackError(f'{several}={found:.60} is no JSON; write a list such as ["a", "b"]')
        return found if isinstance(found, list) else [row[several]]
    return [row[name]] if name in row else numbered


def _parsed(value: Any) -> Any:
    """The list, object or number that a text (a cell of CSV, a text in Parquet) is in JSON; otherwise the value."""
    if isinstance(value, str) and value.strip()[:1] in "[{-0123456789":
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def _messages(value: Any, name: str) -> Any:
    """Chat messages where a text holds them; otherwise the value: a text that is any other JSON is a text. Raises FeedbackError
    for what should be in quotes."""
    if isinstance(value, int | float):
        what = "true or false" if isinstance(value, bool) else "a number"
        raise FeedbackError(f"{name} is {what} ({value}); put it in quotes")
    found = _parsed(value) if isinstance(value, str) and value.lstrip().startswith("[") else value
    turns = isinstance(found, list) and found and all(isinstance(one, dict) and "role" in one for one in found)
    return found if turns else value
