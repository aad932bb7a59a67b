"""What administrators do: look at progress, enrol people, retract and exclude, ask, decide what is known, export."""

from __future__ import annotations

import re
import threading
import time
from dataclasses import asdict, replace
from typing import Any

from starlette.responses import Response

from penstock.feedback import deletion, gold, projects
from penstock.feedback.exchange import files
from penstock.feedback.exchange import snapshot as exchange
from penstock.feedback.exchange.questions import Asking, ask_text
from penstock.feedback.exchange.snapshot import raw_votes
from penstock.feedback.quality.leaderboard import leaderboard
from penstock.feedback.records import DEFAULT, JUDGEMENT, ROLES, Event, Role, Task
from penstock.feedback.service import tasks
from penstock.feedback.service.annotate import stored_key
from penstock.feedback.service.calls import LARGE, Call, Route, Routes, reply
from penstock.feedback.service.context import Context
from penstock.feedback.service.overview import overview, require_axis
from penstock.web.fields import Fields
from penstock.web.refusals import Refusal

CACHED_SECONDS, CACHED_TIMES = 5.0, 10.0
"""How long numbers are kept: some seconds, and ten times as long as it took to compute them."""
MOST_EVENTS = 500
"""Events of one answer."""
LONGEST_REASON = 2000
MOST_SHOWN = 200
"""Gold tasks, or pairs that could be gold, of one answer."""


class Admin:
    """Handlers for administrators."""

    def __init__(self, context: Context) -> None:
        self._context, self._store = context, context.store
        self._lock = threading.Lock()
        self._overviews: dict[str, tuple[float, dict[str, Any]]] = {}

    def routes(self) -> Routes:
        return {
            "/api/admin/overview": {"GET": Route(self.overview, "admin", pool="slow")},
            "/api/admin/annotators": {"GET": Route(self.annotators, "admin"), "POST": Route(self.change, "admin", "json")},
            "/api/admin/retract": {"POST": Route(self.retract, "admin", "json")},
            "/api/admin/events": {"GET": Route(self.events, "admin", pool="slow")},
            "/api/admin/export": {"GET": Route(self.export, "admin", pool="slow")},
            "/api/admin/ask": {"POST": Route(self.ask, "admin", "json", "slow", most=LARGE)},
            "/api/admin/gold": {"GET": Route(self.gold, "admin", pool="slow"), "POST": Route(self.decide, "admin", "json")},
            "/api/admin/gold/agreed": {"POST": Route(self.agreed, "admin", "json", "slow")},
            "/api/admin/leaderboard": {"GET": Route(self.leaderboard, "admin", pool="slow")},
            "/api/admin/project": {"GET": Route(self.project, "admin"), "POST": Route(self.set, "admin", "json", most=LARGE)},
            "/api/admin/exclude": {"POST": Route(self.exclude, "admin", "json")},
            "/api/admin/forget": {"POST": Route(self.forget, "admin", "json", "slow")},
        }

    def _project(self, call: Call) -> projects.Project:
        return self._context.project(call, every=True)

    def overview(self, call: Call) -> Response:
        """A project in numbers, some seconds old."""
        project = self._project(call).name
        with self._lock:
            began = time.monotonic()
            if began > self._overviews.get(project, (-1.0, {}))[0]:
                found = overview(self._store, project)
                took = time.monotonic() - began
                self._overviews[project] = began + took + max(CACHED_SECONDS, CACHED_TIMES * took), found
            return reply(self._overviews[project][1])

    def annotators(self, call: Call) -> Response:
        same = ("name", "role", "nature", "enabled", "quota")
        found = [
            {name: getattr(who, name) for name in same}
            | {"attributes": dict(who.attributes), "invited": bool(who.invite), "has_password": bool(who.password)}
            for who in self._store.annotators()
        ]
        return reply({"annotators": found})

    def change(self, call: Call) -> Response:
        """Enrol ``{name, role, attributes}``, invite again ``{name, invite: true}``, or switch on or off and give another role
        or most: ``{name, enabled, change: {role, quota}}``."""
        fields, accounts = call.fields, self._context.accounts
        name = fields.text("name")
        if fields.has("invite"):
            again = fields.flag("invite")
            fields.done()
            if not again:
                raise Refusal(400, "invite=false; leave it out, or give true for a new invitation", param="invite")
            return reply({"invite": f"/invite/{accounts.invite(name)}"})
        if fields.has("enabled") or fields.has("change"):
            enabled = fields.flag("enabled") if fields.has("enabled") else None
            change = Fields(fields.object("change"))
            fields.done()
            given: Role | None = change.text("role", "", one_of=("", *ROLES)) or None  # type: ignore[assignment]
            quota = change.whole("quota", 0, 0, 10**9) if change.has("quota") else None
            change.done()
            if name == call.who.name and (given is not None or enabled is False):
                what = "change your own role" if given else "switch yourself off"
                raise Refusal(409, f"you cannot {what}; another administrator can", code="not_allowed")
            accounts.change(name, role=given, quota=quota, enabled=enabled)
            return reply({})
        role: Role = fields.text("role", "annotator", one_of=ROLES)  # type: ignore[assignment]
        attributes, project = fields.object("attributes"), self._project(call).name
        fields.done()
        return reply({"invite": f"/invite/{accounts.enrol(name, role, attributes, project)}"})

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
        project = self._project(call).name if "project" in call.query else None
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
        project = self._project(call).name
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
            "X-Changed-Texts": str(files.changed_texts(rows, f".{kind}")),
        }
        return Response(files.encoded(rows, f".{kind}"), headers=headers, media_type=files.FORMATS[f".{kind}"][1])

    def ask(self, call: Call) -> Response:
        """Put the rows of a file's text to people; with ``check`` only say what would be asked."""
        fields = call.fields
        name, text, check = fields.text("name"), fields.text("text"), fields.flag("check")
        argilla = fields.text("format", "rows", one_of=("rows", "argilla")) == "argilla"
        form = fields.text("form", "", one_of=("", *JUDGEMENT))
        project = self._project(call)
        asking = Asking(
            form=form or None,  # type: ignore[arg-type]
            overlap=fields.whole("overlap", project.overlap, 1, 1_000_000),
            axes=fields.texts("axes", 20) or project.axes,
            scale=_scale(fields, project),
            gold=fields.flag("gold"),
            to=fields.texts("to", 1000),
            round=fields.text("round", ""),
            guideline=fields.text("guideline", project.guideline or "1"),
            project=project.name,
            by=call.who.name,
        )
        fields.done()
        new, found = ask_text(self._store, name, text, asking, argilla=argilla, check=check)
        counts = {"questions": len(found.tasks), "same": found.same, "unused": list(found.unused)}
        return reply(counts | ({} if check else {"new": new}))

    def gold(self, call: Call) -> Response:
        """The newest gold tasks with their answers, and whether they were taken back."""
        project = self._project(call).name
        taken = exchange.snapshot(self._store, project=project)
        known = [self._store.task(name) for name in self._store.tasks("gold", project)[: -MOST_SHOWN - 1 : -1]]
        return reply({"gold": [_shown(task) | {"demoted": task.id in taken.state.demoted} for task in known]})

    def decide(self, call: Call) -> Response:
        """Make gold of a task with its known answer, or (``demote``) take gold back."""
        fields, who = call.fields, call.who.name
        task, answer, demote, reason = fields.text("task"), fields.take("answer"), fields.flag("demote"), reason_of(fields)
        fields.done()
        if demote:
            return reply({"event": gold.demote(self._store, who, task, reason).sequence})
        return reply({"task": gold.promote(self._store, who, task, answer, reason)})

    def agreed(self, call: Call) -> Response:
        """Pairs on which many trusted people agree; with ``promote`` they become gold."""
        fields = call.fields
        policy = gold.Agreed(
            fields.whole("people", 5, 2), fields.number("weight", 1.4, 0.01), fields.number("agreement", 0.95, 0.51, 1)
        )
        make = fields.flag("promote")
        fields.done()
        found = gold.agreed(self._store, policy, MOST_SHOWN, self._project(call).name)
        for one in found if make else ():
            gold.promote(self._store, call.who.name, one.task, one.body, one.reason())
        shown = [_shown(self._store.task(one.task)) | {"answer": dict(one.body), "why": one.reason()} for one in found]
        return reply({"pairs": shown, "promoted": len(found) if make else 0})

    def leaderboard(self, call: Call) -> Response:
        """Models by Bradley-Terry, with intervals, on one axis; empty with fewer than two models."""
        taken = exchange.snapshot(self._store, project=self._project(call).name)
        axis = call.query.get("axis", "overall")
        require_axis(taken, axis)
        duels = exchange.duels_of(taken, exchange.Labels(axis=axis))
        rated = leaderboard(duels, samples=200) if any(duel.first != duel.second for duel in duels) else []
        return reply({"models": [vars(one) | {"interval": list(one.interval)} for one in rated]})

    def exclude(self, call: Call) -> Response:
        """Let what a person said, always or in some time (seconds), not count; or (``event``) take such an exclusion back."""
        fields, who = call.fields, call.who.name
        key, reason = stored_key(fields.text("key"), who), reason_of(fields)
        if fields.has("event"):
            event = fields.whole("event", 0, 1)
            fields.done()
            return reply({"event": self._store.include(who, key, event, reason).sequence})
        until = fields.number("until", 0.0, 0.0) if fields.has("until") else None
        name, since = fields.text("name"), fields.number("since", 0.0, 0.0)
        project = "" if not call.query.get("project") else self._project(call).name
        fields.done()
        return reply({"event": self._store.exclude(who, key, name, reason, since, until, project).sequence})

    def project(self, call: Call) -> Response:
        """What is set for a project, its members, and the names of all."""
        found = self._project(call)
        with self._store.database.read() as connection:
            people, names = projects.members(connection, found.name), projects.names_of(connection)
        return reply({"name": found.name, **found.plain(), "members": people, "projects": names})

    def set(self, call: Call) -> Response:
        """Set what is given for a project and who its members are; or (``new``) make one of that name."""
        fields = call.fields
        new, add, remove = fields.text("new", ""), fields.texts("add", 1000), fields.texts("remove", 1000)
        found = projects.Project(new) if new else self._project(call)
        made = replace(
            found,
            forms=fields.texts("forms", 10) or found.forms,
            overlap=fields.whole("overlap", found.overlap, 1, 1_000_000),
            axes=fields.texts("axes", 20) or found.axes,
            scale=_scale(fields, found),
            policy=fields.object("policy") if fields.has("policy") else found.policy,
        )
        text, version = fields.text("guideline", ""), fields.text("version", found.guideline)
        fields.done()
        made = made.with_guideline(version, text) if text else replace(made, guideline=version)
        projects.change(self._store, made, new=bool(new), add=add, remove=remove)
        return reply({"name": made.name})

    def forget(self, call: Call) -> Response:
        """Delete a person; what they said stays under a pseudonym, or goes too."""
        fields = call.fields
        name, votes = fields.text("name"), fields.text("votes", one_of=("keep", "remove"))
        fields.done()
        kept: Any = votes
        return reply({"pseudonym": deletion.forget(self._store, call.who.name, name, kept)})


def number(call: Call, name: str, default: int) -> int:
    """A whole number of the query. Raises Refusal."""
    given = call.query.get(name, str(default))
    if not (given.isascii() and given.isdigit() and len(given) <= 15):
        raise Refusal(400, f"{name}={given[:40]!r}; give a whole number", param=name)
    return int(given)


def lineage(event: Event, task: Task | None) -> dict[str, Any]:
    """An event with its task and where the task's responses come from: all that an administrator may ask about it."""
    made = {**asdict(event), "body": dict(event.body), "order": list(event.order), "task": None}
    if task is not None:
        about = {name: getattr(task, name) for name in ("id", "form", "purpose", "strategy", "origin")}
        about |= {"key": task.item.key, "groups": dict(task.item.groups), "prompt": task.item.prompt[:400]}
        responses = [response.origin | {"text": tasks.in_words(response)} for response in task.item.responses]
        made["task"] = about | {"responses": responses}
    return made


def _scale(fields: Fields, project: projects.Project) -> tuple[float, float]:
    """The lowest and the highest rating, as a request has them or else the project. Raises Refusal."""
    scale = fields.take("scale", list(project.scale))
    if not isinstance(scale, list) or [type(end) in (int, float) for end in scale] != [True, True]:
        raise Refusal(400, "scale: give the lowest and the highest rating, such as [1, 7]", param="scale")
    return float(scale[0]), float(scale[1])


def reason_of(fields: Fields) -> str:
    """Why somebody decides. Raises Refusal."""
    reason = fields.text("reason")
    if not reason.strip() or len(reason) > LONGEST_REASON:
        raise Refusal(400, f"reason: say why in 1 to {LONGEST_REASON} characters; it stays in the log", param="reason")
    return reason


def _shown(task: Task) -> dict[str, Any]:
    """A task as an administrator's list has it."""
    texts = [tasks.in_words(response) for response in task.item.responses]
    answer = None if task.gold is None else dict(task.gold)
    return {"task": task.id, "form": task.form, "prompt": task.item.prompt[:400], "responses": texts, "answer": answer}
