"""What adjudicators do: make tasks of what annotators differ on, and look at what waits, with the votes but without names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import sqlalchemy as sa
from starlette.responses import Response

from penstock.feedback import bodies, schema
from penstock.feedback.exchange.snapshot import Labels, Votes, snapshot
from penstock.feedback.judgements import once
from penstock.feedback.quality.reliability import ASKED, to_adjudicate
from penstock.feedback.queue import display_order
from penstock.feedback.records import DEFAULT, JUDGEMENTS, Event, Task, digest
from penstock.feedback.service import tasks
from penstock.feedback.service.calls import Call, Route, Routes, reply
from penstock.feedback.service.context import Context
from penstock.feedback.state import State
from penstock.feedback.store import Store

AT_ONCE = 100
"""Tasks that one call makes or lists at most."""
PRIORITY = 1000.0
"""Adjudicators are handed these before everything ordinary."""


def disputed(store: Store, project: str = DEFAULT) -> list[Task]:
    """A task for an adjudicator of each item that a project's annotators differ on, the least certain first; those
    there are already included, so that asking for them again adds nothing."""
    votes = Votes.of(snapshot(store, project=project), Labels())
    asked = {comparison.unit: comparison.task for comparison in reversed(votes.found) if comparison.purpose in ASKED}
    units = to_adjudicate(once(votes.found), votes.weights)
    origins = {asked[unit].id: asked[unit] for unit in units}.values()
    made = [replace(task, purpose="adjudication", origin=task.id, overlap=1, priority=PRIORITY) for task in origins]
    return [replace(task, round="", reserved="") for task in made]


class Adjudicate:
    """Handlers for adjudicators."""

    def __init__(self, context: Context) -> None:
        self._context, self._store = context, context.store

    def routes(self) -> Routes:
        return {
            "/api/adjudicate/fill": {"POST": Route(self.fill, "adjudicator", "json", "slow")},
            "/api/adjudicate/list": {"GET": Route(self.list, "adjudicator", pool="slow")},
        }

    def fill(self, call: Call) -> Response:
        """Make the tasks; ``added`` says how many are new."""
        call.fields.done()
        found = disputed(self._store, self._context.project(call).name)
        there = set(self._store.tasks())
        new = [task for task in found if task.id not in there][:AT_ONCE]
        self._store.ask(new)
        return reply({"added": len(new)})

    def list(self, call: Call) -> Response:
        """What waits for an adjudicator, as it would be shown to who asks, with everybody's votes turned to the same order."""
        table = schema.progress.c
        mine = table.project == self._context.project(call).name
        waiting = sa.select(table.task).where(mine, table.purpose == "adjudication", table.open)
        waiting = waiting.order_by(table.urgency, table.number)
        with self._store.database.read() as connection:
            names = list(connection.execute(waiting).scalars())
        state = self._store.state()
        shown = [self._waiting(self._store.task(name), state, call.who.name) for name in names[:AT_ONCE]]
        return reply({"tasks": shown, "waiting": len(names)})

    def _waiting(self, task: Task, state: State, name: str) -> dict[str, Any]:
        responses = task.item.responses
        order = display_order(task.id, name, len(responses), self._store.policy.seed)
        judged = [event for event in state.standing.values() if event.task == task.origin and event.kind in JUDGEMENTS]
        said = [event for event in state.remarks.values() if event.task == task.origin]

        def shuffled(event: Event) -> str:
            """Another order for each task: else who is who could be followed from one to the next."""
            return self._context.handles.handle(digest([task.id, event.key])[:32], name)

        return {
            "id": self._context.handles.handle(task.id, name),
            "form": task.form,
            "prompt": tasks.text_and_html(task.item.prompt),
            "responses": [tasks.text_and_html(responses[index].text) for index in order],
            "votes": [_placed(event, order) for event in sorted(judged, key=shuffled)],
            "remarks": [_placed(event, order) for event in sorted(said, key=shuffled)],
        }


def _placed(event: Event, order: tuple[int, ...]) -> dict[str, Any]:
    """What somebody said, by the places of ``order``, without who and when."""
    return {"kind": event.kind, "body": bodies.as_places(event.kind, event.body, order)}
