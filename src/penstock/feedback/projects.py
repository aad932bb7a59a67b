"""Projects: named parts of a store, each with its guideline, forms, people, overlap, quotas, gold and qualification.

A task belongs to one project for ever. Its members alone are shown its tasks; what they say is counted, exported and measured
by project. Who people are, the log and its numbers, and products' signals are the store's.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from penstock.feedback import queue, records, rows, schema
from penstock.feedback.errors import FeedbackError, NotFound
from penstock.feedback.policy import QueuePolicy
from penstock.feedback.records import DEFAULT, JUDGEMENT, LONGEST_TEXT, Item, Response, Task, canonical, require_name, vars_of

if TYPE_CHECKING:
    from penstock.feedback.store import Store

POLICY: Mapping[str, type | tuple[type, ...]] = {
    "gold_share": (int, float), "repeat_share": (int, float), "qualify": int, "qualified": (int, float), "pause": bool,
    "quota": int,
}  # fmt: skip
"""What a project may set of its queue's policy, and as what."""


@dataclass(frozen=True)
class Project:
    """What is set for a project; what is not is as the command or the service has it."""

    name: str
    forms: tuple[str, ...] = tuple(JUDGEMENT)
    """Forms that may be asked in it."""
    overlap: int = 3
    axes: tuple[str, ...] = ("overall",)
    scale: tuple[float, float] = (1.0, 7.0)
    """How it asks, where a question does not say."""
    guidelines: Mapping[str, str] = field(default_factory=dict)
    """Markdown texts that annotators read, by version; a version's text never changes."""
    guideline: str = ""
    """The version in force; empty: the service's own text."""
    policy: Mapping[str, Any] = field(default_factory=dict)
    """Fields of ``QueuePolicy`` that are the project's own: :data:`POLICY`."""

    def __post_init__(self) -> None:
        require_name(self.name, "project")
        if not self.forms or not set(self.forms) <= JUDGEMENT.keys():
            raise FeedbackError(f"forms={', '.join(self.forms)}; give some of: {', '.join(JUDGEMENT)}")
        records.require_names(self.axes)
        Task(item=Item("", (Response(""),)), form="rating", overlap=self.overlap, axes=self.axes, scale=self.scale)
        if self.guideline not in ("", *self.guidelines):
            raise FeedbackError(f"guideline={self.guideline!r:.60}; its versions are: {', '.join(self.guidelines) or 'none'}")
        for name, value in self.policy.items():
            kind = POLICY.get(name)
            if kind is None or not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
                raise FeedbackError(
                    f"{name}={value!r:.40}: a project sets {', '.join(POLICY)}: numbers, and pause true or false"
                )
        if ("gold_share" in self.policy) != ("repeat_share" in self.policy):
            raise FeedbackError("a project sets gold_share and repeat_share together, or neither")
        self.within(QueuePolicy())

    @classmethod
    def of(cls, name: str, fields: Mapping[str, Any]) -> Project:
        """The project of a name and :meth:`plain` fields."""
        lists = {key: tuple(value) for key, value in fields.items() if isinstance(value, list)}
        return cls(name, **{**fields, **lists})

    def plain(self) -> dict[str, Any]:
        """What is set, without the name."""
        return {key: value for key, value in vars_of(self).items() if key != "name"}

    def within(self, policy: QueuePolicy) -> QueuePolicy:
        """The policy of its queue, where the store's has ``policy``."""
        return replace(policy, **self.policy)

    def with_guideline(self, version: str, text: str) -> Project:
        """With a version of the guideline in force. Raises FeedbackError if there is such a version with another text."""
        require_name(version, "guideline version")
        if len(text) > LONGEST_TEXT or not text.strip():
            raise FeedbackError(f"a guideline has 1 to {LONGEST_TEXT} characters, not {len(text)}")
        if self.guidelines.get(version, text) != text:
            raise FeedbackError(f"version {version} of the guideline has another text; give the new text a new version")
        return replace(self, guidelines={**self.guidelines, version: text}, guideline=version)

    @property
    def asking(self) -> dict[str, Any]:
        """How it asks, for questions that do not say."""
        return {"overlap": self.overlap, "axes": self.axes, "scale": self.scale, "guideline": self.guideline or "1"}

    def require_forms(self, tasks: Iterable[Task]) -> None:
        """Raises FeedbackError: a task of a form that is not asked here."""
        for task in tasks:
            if task.form not in self.forms:
                raise FeedbackError(f"project {self.name} asks no {task.form}; it asks: {', '.join(self.forms)}")


def names_of(connection: Connection, member: str | None = None) -> list[str]:
    """The projects, by name, or those of a member. The one that every store begins with is not among them while nothing is
    asked in it and there are others."""
    table, asked = schema.projects.c.name, sa.exists().where(schema.progress.c.project == DEFAULT)
    found = list(connection.execute(sa.select(table).order_by(table)).scalars())
    if len(found) > 1 and not connection.execute(sa.select(asked)).scalar():
        found.remove(DEFAULT)
    if member is None:
        return found
    theirs = sa.select(schema.members.c.project).where(schema.members.c.annotator == member)
    mine = set(connection.execute(theirs).scalars())
    return [name for name in found if name in mine]


def chosen(connection: Connection, given: str, member: str | None = None) -> str:
    """The project that is named, or the only one there is (of a member: that is theirs).

    Raises:
        NotFound: there is none of that name.
        FeedbackError: none is named, and there are several.
    """
    if given and member is None:
        return load(connection, given).name
    names = names_of(connection, member)
    if given in names:
        return given
    if given or not names:
        raise NotFound(_missing(given, names))
    if len(names) > 1:
        raise FeedbackError(f"which project? there are: {', '.join(names)}; name one (--project NAME)")
    return names[0]


def _missing(name: str, names: Sequence[str]) -> str:
    return f"there is no project {name!r:.60}; there are: {', '.join(names) or 'none'}"


def load(connection: Connection, name: str) -> Project:
    """The project of a name. Raises NotFound."""
    body = connection.execute(sa.select(schema.projects.c.body).where(schema.projects.c.name == name)).scalar()
    if body is None:
        raise NotFound(_missing(name, names_of(connection)))
    return Project.of(name, json.loads(body))


def change(store: Store, project: Project, *, new: bool = False, add: Sequence[str] = (), remove: Sequence[str] = ()) -> None:
    """Set what is set for a project and who its members are, or (``new``) make it; all of it or nothing.

    What somebody said stays when they are no member any more; the seats that they hold are free.

    Raises:
        NotFound: there is no such project, person or member.
        FeedbackError: ``new``, and there is one.
    """
    table = schema.projects
    with store.database.write() as connection:
        if new and rows.has(connection, table.c.name, project.name):
            raise FeedbackError(f"there is a project {project.name} already; leave out --new to change it")
        if new:
            connection.execute(table.insert().values(name=project.name, body="{}", added=store.now()))
        load(connection, project.name)
        connection.execute(table.update().where(table.c.name == project.name).values(body=canonical(project.plain())))
        for name in add:
            admit(connection, project.name, name)
        for name in remove:
            _dismiss(connection, project.name, name, store.now())


def members(connection: Connection, project: str) -> list[str]:
    """Who is a member of a project, by name."""
    table = schema.members.c
    return list(
        connection.execute(sa.select(table.annotator).where(table.project == project).order_by(table.annotator)).scalars()
    )


def admit(connection: Connection, project: str, name: str) -> None:
    """Make somebody a member of a project, if they are not. Raises NotFound: there is no such person, or no such project."""
    rows.load_annotator(connection, name)
    load(connection, project)
    if name not in members(connection, project):
        connection.execute(schema.members.insert().values(project=project, annotator=name))


def _dismiss(connection: Connection, project: str, name: str, now: float) -> None:
    table, leases = schema.members, schema.leases.c
    mine = (table.c.project == project) & (table.c.annotator == name)
    if not connection.execute(table.delete().where(mine)).rowcount:
        raise NotFound(f"{name} is no member of project {project}")
    for lease in rows.load_leases(connection, leases.annotator == name, leases.deadline > now):
        task = rows.load_task(connection, lease.task)
        if task.project == project:
            queue.give_back(connection, task, name, now)
