"""What administrators ask, and what is known: questions by upload, gold made and taken back, the leaderboard, deletion."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from starlette.responses import Response

from penstock.feedback import deletion, gold, projects
from penstock.feedback.exchange.questions import Asking, ask_text
from penstock.feedback.exchange.snapshot import Labels, duels_of, snapshot
from penstock.feedback.quality.leaderboard import leaderboard
from penstock.feedback.records import JUDGEMENT, Task
from penstock.feedback.service import tasks
from penstock.feedback.service.annotate import stored_key
from penstock.feedback.service.calls import LARGE, Call, Route, Routes, reply
from penstock.feedback.service.context import Context
from penstock.feedback.service.overview import require_axis
from penstock.web.fields import Fields
from penstock.web.refusals import Refusal

LONGEST_REASON = 2000
MOST_SHOWN = 200
"""Gold tasks, or pairs that could be gold, of one answer."""


class Ask:
    """Handlers for administrators, beyond those of ``admin.py``."""

    def __init__(self, context: Context) -> None:
        self._context, self._store = context, context.store

    def routes(self) -> Routes:
        return {
            "/api/admin/ask": {"POST": Route(self.ask, "admin", "json", "slow", most=LARGE)},
            "/api/admin/gold": {"GET": Route(self.gold, "admin", pool="slow"), "POST": Route(self.decide, "admin", "json")},
            "/api/admin/gold/agreed": {"POST": Route(self.agreed, "admin", "json", "slow")},
            "/api/admin/leaderboard": {"GET": Route(self.leaderboard, "admin", pool="slow")},
            "/api/admin/project": {"GET": Route(self.project, "admin"), "POST": Route(self.set, "admin", "json", most=LARGE)},
            "/api/admin/exclude": {"POST": Route(self.exclude, "admin", "json")},
            "/api/admin/forget": {"POST": Route(self.forget, "admin", "json", "slow")},
        }

    def ask(self, call: Call) -> Response:
        """Put the rows of a file's text to people; with ``check`` only say what would be asked."""
        fields = call.fields
        name, text, check = fields.text("name"), fields.text("text"), fields.flag("check")
        argilla = fields.text("format", "rows", one_of=("rows", "argilla")) == "argilla"
        form = fields.text("form", "", one_of=("", *JUDGEMENT))
        project = self._context.project(call, every=True)
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
        project = self._context.project(call, every=True).name
        taken = snapshot(self._store, project=project)
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
        found = gold.agreed(self._store, policy, MOST_SHOWN, self._context.project(call, every=True).name)
        for one in found if make else ():
            gold.promote(self._store, call.who.name, one.task, one.body, one.reason())
        shown = [_shown(self._store.task(one.task)) | {"answer": dict(one.body), "why": one.reason()} for one in found]
        return reply({"pairs": shown, "promoted": len(found) if make else 0})

    def leaderboard(self, call: Call) -> Response:
        """Models by Bradley-Terry, with intervals, on one axis; empty with fewer than two models."""
        taken = snapshot(self._store, project=self._context.project(call, every=True).name)
        axis = call.query.get("axis", "overall")
        require_axis(taken, axis)
        duels = duels_of(taken, Labels(axis=axis))
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
        project = "" if not call.query.get("project") else self._context.project(call, every=True).name
        fields.done()
        return reply({"event": self._store.exclude(who, key, name, reason, since, until, project).sequence})

    def project(self, call: Call) -> Response:
        """What is set for a project, its members, and the names of all."""
        found = self._context.project(call, every=True)
        with self._store.database.read() as connection:
            people, names = projects.members(connection, found.name), projects.names_of(connection)
        return reply({"name": found.name, **found.plain(), "members": people, "projects": names})

    def set(self, call: Call) -> Response:
        """Set what is given for a project and who its members are; or (``new``) make one of that name."""
        fields = call.fields
        new, add, remove = fields.text("new", ""), fields.texts("add", 1000), fields.texts("remove", 1000)
        found = projects.Project(new) if new else self._context.project(call, every=True)
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
