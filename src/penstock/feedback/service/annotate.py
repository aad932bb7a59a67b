"""What annotators do: take a task, renew or give it back, submit, undo. Every verb is one of the store's."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from starlette.responses import Response

from penstock.feedback import admission, bodies, rows, schema
from penstock.feedback.errors import NotFound
from penstock.feedback.projects import Project
from penstock.feedback.queue import next_adjudication
from penstock.feedback.records import JUDGEMENTS, PASSES, REMARKS, Kind, Lease, Submission
from penstock.feedback.service import tasks
from penstock.feedback.service.calls import LARGE, Call, Route, Routes, reply
from penstock.feedback.service.context import Context
from penstock.feedback.service.markdown import html_of
from penstock.web.refusals import Refusal

LONGEST_VERSION = 100
"""Characters of a guideline's version."""
MEDIUM = re.compile(r"([0-9a-f]{32})\.(p|\d{1,3})\.(\d{1,3})")
"""A file of a task: its handle, the place on the page (``tasks.PROMPT`` or a number), and which one there."""
RANGE = re.compile(r"bytes=(\d{1,12})-(\d{0,12})")
"""The one form of a range that players send."""
KINDS = (*sorted(JUDGEMENTS), *sorted(PASSES), *sorted(REMARKS))


def _last_shown(connection: Connection, task: str, annotator: str) -> tuple[int, ...]:
    """In which order an annotator was last shown a task that they have said something about."""
    table = schema.events.c
    query = sa.select(table.shown).where(table.task == task, table.annotator == annotator, table.shown != "[]")
    return tuple(json.loads(connection.execute(query.order_by(table.sequence.desc()).limit(1)).scalar() or "[]"))


def stored_key(given: str, annotator: str) -> str:
    """An idempotency key as the log has it: what the page made, and a hash of whose it is.

    Nobody can take or try the keys of others.

    Raises:
        Refusal: not of the form of a key.
    """
    if not re.fullmatch(r"[A-Za-z0-9_.\-]{8,80}", given):
        raise Refusal(400, "key: give 8 to 80 letters, digits or any of _ . -, new for each act", param="key")
    return f"{hashlib.sha256(annotator.encode()).hexdigest()[:16]}/{given}"


class Annotate:
    """Handlers of the annotation page."""

    def __init__(self, context: Context) -> None:
        self._context, self._store = context, context.store

    def routes(self) -> Routes:
        return {
            "/api/me": {"GET": Route(self.me)},
            "/api/held": {"GET": Route(self.held)},
            "/api/next": {"POST": Route(self.next, body="json")},
            "/api/renew": {"POST": Route(self.renew, body="json")},
            "/api/give-back": {"POST": Route(self.give_back, body="json")},
            "/api/submit": {"POST": Route(self.submit, body="json", most=LARGE)},
            "/api/undo": {"POST": Route(self.undo, body="json")},
            "/api/media/{name}": {"GET": Route(self.media)},
        }

    def me(self, call: Call) -> Response:
        assert call.session is not None  # the route's right
        policy, project = self._store.policy, self._context.project(call)
        version, text = self._context.guideline(project)
        return reply(
            {
                "name": call.who.name,
                "role": call.who.role,
                "csrf": call.session.csrf,
                "project": project.name,
                "done": self._done(call, project.name),
                "guideline": {"version": version, "html": html_of(text)},
                "held_most": policy.held,
                "lease_seconds": policy.lease_seconds,
                "admission": self._admission(call, project),
            }
        )

    def _admission(self, call: Call, project: Project) -> dict[str, Any]:
        """How far somebody is with their qualification, and why nothing is handed out to them any more, if so."""
        with self._store.database.read() as connection:
            found = admission.standing(connection, call.who.name, project.name)
        policy = project.within(self._store.policy)
        wanted = policy.qualify if call.who.role == "annotator" and not found.decisions else 0
        done = min(wanted, len(found.judged))
        return {"qualify": wanted, "done": done, "paused": found.paused, "quota": call.who.quota or policy.quota}

    def held(self, call: Call) -> Response:
        held = self._store.held(call.who.name, self._context.project(call).name)
        return reply({"tasks": [self._shown(lease) for lease in held]})

    def next(self, call: Call) -> Response:
        """Lease the next task; adjudicators may ask for what is to be adjudicated alone."""
        purpose = call.fields.text("purpose", "", one_of=("", "adjudication"))
        certain = self._task(call) if purpose and call.fields.has("task") else None
        call.fields.done()
        project, who = self._context.project(call).name, call.who.name
        lease = self._adjudication(call, certain, project) if purpose else self._store.next_task(who, project=project)
        return reply({"task": None if lease is None else self._shown(lease)})

    def _adjudication(self, call: Call, certain: str | None, project: str) -> Lease | None:
        """Lease a certain task that is to be adjudicated, or the next one."""
        if call.who.role == "annotator":
            raise Refusal(403, "adjudication is for adjudicators", code="not_allowed")
        if certain is None:
            return self._store.next_task(call.who.name, next_adjudication, project)
        task = self._store.task(certain)
        if task.purpose != "adjudication" or task.project != project:
            raise NotFound("there is no such task to adjudicate")
        return self._store.hand_out(certain, call.who.name)

    def renew(self, call: Call) -> Response:
        task = self._task(call)
        call.fields.done()
        self._seen(task, call.who.name)
        lease = self._store.hand_out(task, call.who.name)
        return reply({"deadline": max(0.0, lease.deadline - self._store.now())})

    def give_back(self, call: Call) -> Response:
        task = self._task(call)
        call.fields.done()
        self._store.give_back(task, call.who.name)
        return reply({})

    def submit(self, call: Call) -> Response:
        """Record what was said. The body speaks of places; it is checked before it is turned: no refusal tells the order."""
        fields = call.fields
        key, kind = stored_key(fields.text("key"), call.who.name), fields.text("kind", one_of=KINDS)
        name, body = self._task(call), fields.object("body")
        latency = fields.number("latency", 0.0, 0.0, 1e7) if fields.has("latency") else None
        guideline = fields.text("guideline", "")
        fields.done()
        if len(guideline) > LONGEST_VERSION:
            raise Refusal(400, f"guideline: the version that was read, at most {LONGEST_VERSION} characters", param="guideline")
        order, seen = self._seen(name, call.who.name)
        task = self._store.task(name)
        guideline = guideline or self._context.guideline(self._store.project(task.project))[0]
        checked = bodies.check(kind, body, task)
        said: Kind = kind  # type: ignore[assignment]
        body = bodies.as_responses(kind, checked, order)
        if latency is not None and seen is not None:
            latency = min(latency, seen)  # nobody has looked at a task for longer than they have had it
        event = self._store.submit(Submission(said, name, call.who.name, key, body, latency, guideline))
        return reply({"event": event.sequence, "done": self._done(call, task.project)})

    def undo(self, call: Call) -> Response:
        """Take back one's newest event; gives its task, leased again, or null where only a remark was taken back."""
        key = stored_key(call.fields.text("key"), call.who.name)
        call.fields.done()
        project = self._context.project(call).name
        event = self._store.undo(call.who.name, key, project=project)
        leases = {lease.task: lease for lease in self._store.held(call.who.name, project)}
        lease = leases.get(event.task)
        return reply({"task": None if lease is None else self._shown(lease), "done": self._done(call, project)})

    def media(self, call: Call) -> Response:
        """An image, sound or video of a task that was shown to who asks; a part of it where a player asks for one."""
        found = MEDIUM.fullmatch(call.name)
        if found is None:
            raise NotFound("there is no such file")
        task = self._context.handles.task(found[1], call.who.name)
        order, _ = self._seen(task, call.who.name)
        blob = tasks.medium(self._store.task(task), order, found[2], int(found[3]))
        if blob is None:
            raise NotFound("there is no such file")
        with self._store.database.read() as connection:
            content = rows.load_blob(connection, blob)
        headers = {"Cache-Control": "private, max-age=600", "Accept-Ranges": "bytes", "Content-Disposition": "inline"}
        part = RANGE.fullmatch(call.headers.get("range", ""))
        first, last = (int(part[1]), min(int(part[2] or blob.size), blob.size - 1)) if part else (0, -1)
        if first > last:
            return Response(content, 200, headers, blob.kind)
        headers["Content-Range"] = f"bytes {first}-{last}/{blob.size}"
        return Response(content[first : last + 1], 206, headers, blob.kind)

    def _task(self, call: Call) -> str:
        return self._context.handles.task(call.fields.text("task"), call.who.name)

    def _shown(self, lease: Lease) -> dict[str, Any]:
        handle = self._context.handles.handle(lease.task, lease.annotator)
        return tasks.shown(self._store.task(lease.task), lease, handle, self._store.now())

    def _seen(self, task: str, annotator: str) -> tuple[tuple[int, ...], float | None]:
        """In which order a task was shown to an annotator, and for how many seconds they have had it, if they still do.

        Raises:
            NotFound: it was never shown to them, or they are no member of its project any more.
        """
        members, tasks_of = schema.members, schema.tasks.c
        mine = sa.select(members.c.project).join(schema.tasks, tasks_of.project == members.c.project)
        with self._store.database.read() as connection:
            leases = schema.leases.c
            member = connection.execute(mine.where(tasks_of.id == task, members.c.annotator == annotator)).first()
            lease = next(iter(rows.load_leases(connection, leases.task == task, leases.annotator == annotator)), None)
            order = lease.order if lease else _last_shown(connection, task, annotator)
        if not order or member is None:
            raise NotFound("there is no such task of yours; ask for the next one")
        seconds = None if lease is None else self._store.now() - lease.granted
        return order, None if seconds is None or seconds < 0 else seconds  # below 0: the clock has gone back

    def _done(self, call: Call, project: str) -> int:
        """Judgements of an annotator in force, in a project."""
        table = schema.answers.c
        with self._store.database.read() as connection:
            mine, judged = (table.annotator == call.who.name) & (table.project == project), table.kind.in_(JUDGEMENTS)
            return connection.execute(sa.select(sa.func.count()).where(mine, judged)).scalar_one()
