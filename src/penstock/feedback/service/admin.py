"""What administrators do: look at progress, enrol people and switch them off, retract, read the log, export."""

from __future__ import annotations

import re
import threading
import time
from dataclasses import asdict
from typing import Any

from starlette.responses import Response

from penstock.feedback.exchange import files
from penstock.feedback.exchange import snapshot as exchange
from penstock.feedback.exchange.votes import raw_votes
from penstock.feedback.records import DEFAULT, ROLES, Event, Role, Task
from penstock.feedback.service import tasks
from penstock.feedback.service.annotate import stored_key
from penstock.feedback.service.ask import Ask, reason_of
from penstock.feedback.service.calls import Call, Route, Routes, reply
from penstock.feedback.service.context import Context
from penstock.feedback.service.overview import overview
from penstock.web.fields import Fields
from penstock.web.refusals import Refusal

CACHED_SECONDS, CACHED_TIMES = 5.0, 10.0
"""How long numbers are kept: some seconds, and ten times as long as it took to compute them."""
MOST_EVENTS = 500
"""Events of one answer."""


class Admin:
    """Handlers for administrators."""

    def __init__(self, context: Context) -> None:
        self._context, self._store = context, context.store
        self._lock = threading.Lock()
        self._overviews: dict[str, tuple[float, dict[str, Any]]] = {}

    def routes(self) -> Routes:
        return {
            **Ask(self._context).routes(),
            "/api/admin/overview": {"GET": Route(self.overview, "admin", pool="slow")},
            "/api/admin/annotators": {
                "GET": Route(self.annotators, "admin"),
                "POST": Route(self.change, "admin", "json"),
            },
            "/api/admin/retract": {"POST": Route(self.retract, "admin", "json")},
            "/api/admin/events": {"GET": Route(self.events, "admin", pool="slow")},
            "/api/admin/export": {"GET": Route(self.export, "admin", pool="slow")},
        }

    def overview(self, call: Call) -> Response:
        """A project in numbers, some seconds old."""
        project = self._context.project(call, every=True).name
        with self._lock:
            began = time.monotonic()
            if began > self._overviews.get(project, (-1.0, {}))[0]:
                found = overview(self._store, project)
                took = time.monotonic() - began
                self._overviews[project] = began + took + max(CACHED_SECONDS, CACHED_TIMES * took), found
            return reply(self._overviews[project][1])

    def annotators(self, call: Call) -> Response:
        found = [
            {
                "name": who.name,
                "role": who.role,
                "nature": who.nature,
                "attributes": dict(who.attributes),
                "enabled": who.enabled,
                "invited": bool(who.invite),
                "has_password": bool(who.password),
                "quota": who.quota,
            }
            for who in self._store.annotators()
        ]
        return reply({"annotators": found})

    def change(self, call: Call) -> Response:
        """Enrol ``{name, role, attributes}``, switch on or off ``{name, enabled}``, invite again ``{name, invite: true}``, or
        give another role or most ``{name, change: {role, quota}}``."""
        fields = call.fields
        name = fields.text("name")
        if fields.has("enabled"):
            enabled = fields.flag("enabled")
            fields.done()
            if name == call.who.name and not enabled:
                raise Refusal(409, "you cannot switch yourself off; another administrator can", code="not_allowed")
            self._context.accounts.switch(name, enabled)
            return reply({})
        if fields.has("invite"):
            again = fields.flag("invite")
            fields.done()
            if not again:
                raise Refusal(400, "invite=false; leave it out, or give true for a new invitation", param="invite")
            return reply({"invite": f"/invite/{self._context.accounts.invite(name)}"})
        if fields.has("change"):
            change = Fields(fields.object("change"))
            fields.done()
            given: Role | None = change.text("role", "", one_of=("", *ROLES)) or None  # type: ignore[assignment]
            quota = change.whole("quota", 0, 0, 10**9) if change.has("quota") else None
            change.done()
            if name == call.who.name and given is not None:
                raise Refusal(409, "you cannot change your own role; another administrator can", code="not_allowed")
            self._context.accounts.change(name, role=given, quota=quota)
            return reply({})
        role: Role = fields.text("role", "annotator", one_of=ROLES)  # type: ignore[assignment]
        attributes, project = fields.object("attributes"), self._context.project(call, every=True).name
        fields.done()
        return reply({"invite": f"/invite/{self._context.accounts.enrol(name, role, attributes, project)}"})

    def retract(self, call: Call) -> Response:
        fields = call.fields
        key, target = stored_key(fields.text("key"), call.who.name), fields.whole("event", 0, 1)
        reason = reason_of(fields)
        fields.done()
        event = self._store.retract(call.who.name, key, target, reason)
        return reply({"event": event.sequence})

    def events(self, call: Call) -> Response:
        """A part of the log with where each task and response comes from."""
        after, limit = number(call, "after", 0), number(call, "limit", 100)
        if not 1 <= limit <= MOST_EVENTS:
            raise Refusal(400, f"limit={limit}; give 1 to {MOST_EVENTS}", param="limit")
        project = self._context.project(call, every=True).name if "project" in call.query else None
        found = exchange.of_project(self._store.events(after, after + limit), project)
        tasks = self._store.tasks_of(found)
        lines = [lineage(event, tasks.get(event.task)) for event in found]
        return reply({"events": lines, "length": self._store.length()})

    def export(self, call: Call) -> Response:
        """Rows to train on, or (``votes``) what each annotator said, as a file; ``X-Content-Hash`` is what a run records."""
        form, kind = call.query.get("form", "pairs"), call.query.get("format", "jsonl")
        if form not in (*exchange.FORMS, "votes") or f".{kind}" not in files.FORMATS:
            kinds = ", ".join(suffix[1:] for suffix in files.FORMATS)
            raise Refusal(400, f"form is one of {', '.join(exchange.FORMS)}, votes, format one of {kinds}")
        project = self._context.project(call, every=True).name
        taken = exchange.snapshot(self._store, project=project)
        rows = raw_votes(taken, self._context.pseudonym) if form == "votes" else exchange.FORMS[form](taken)
        if not rows:
            raise Refusal(404, "there are no rows to export yet", code="not_found")
        named = "" if project == DEFAULT else re.sub(r"[^\w.\-]", "_", f"-{project}", flags=re.ASCII)
        name = f"feedback{named}-{form}-{taken.until}.{kind}"
        headers = {
            "Content-Disposition": f'attachment; filename="{name}"',
            "X-Content-Hash": exchange.content_hash(rows),
            "X-Events": str(taken.until),
        }
        return Response(files.encoded(rows, f".{kind}"), headers=headers, media_type=files.FORMATS[f".{kind}"][1])


def number(call: Call, name: str, default: int) -> int:
    """A whole number of the query. Raises Refusal."""
    given = call.query.get(name, str(default))
    if not (given.isascii() and given.isdigit() and len(given) <= 15):
        raise Refusal(400, f"{name}={given[:40]!r}; give a whole number", param=name)
    return int(given)


def lineage(event: Event, task: Task | None) -> dict[str, Any]:
    """An event with its task and where the task's responses come from: all that an administrator may ask about it."""
    made = {**asdict(event), "body": dict(event.body), "order": list(event.order)}
    if task is None:
        return {**made, "task": None}
    responses = [response.origin | {"text": tasks.in_words(response)} for response in task.item.responses]
    about = {
        "id": task.id,
        "form": task.form,
        "purpose": task.purpose,
        "strategy": task.strategy,
        "origin": task.origin,
        "key": task.item.key,
        "groups": dict(task.item.groups),
        "prompt": task.item.prompt[:400],
        "responses": responses,
    }
    return {**made, "task": about}
