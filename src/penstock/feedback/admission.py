"""Who may judge: people who qualify on gold first, and pass it all along.

Who does not is excluded by the store itself, under their own name, as an event: their votes do not count, and no task is handed
out to them. ``Store.include`` by an administrator takes that back, and lets them go on.
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from penstock.feedback import rows, schema
from penstock.feedback.judgements import comparisons, gold_units, ratings
from penstock.feedback.policy import QueuePolicy
from penstock.feedback.quality.reliability import GOLD, Share, gold_accuracy
from penstock.feedback.records import JUDGEMENTS, Event


@dataclass(frozen=True)
class Standing:
    """What the store knows and has decided about somebody."""

    judged: tuple[Event, ...]
    """Their first judgement of each gold task, taken back by themselves or not, in order."""
    decisions: tuple[Event, ...]
    """What the store has decided about them, and administrators about that."""

    @property
    def paused(self) -> str:
        """Why nothing is handed out to them; empty: it is."""
        return "" if not self.decisions or self.decisions[-1].kind == "include" else str(self.decisions[-1].body["reason"])


def standing(connection: Connection, name: str, project: str) -> Standing:
    """What the store knows and has decided about somebody in a project."""
    events, answers, tasks = schema.events.c, schema.answers.c, schema.tasks.c
    gold = (events.annotator == name) & events.kind.in_(JUDGEMENTS) & (tasks.purpose == "gold") & (tasks.project == project)
    retracted = sa.exists().where(answers.task == events.task, answers.annotator == name, answers.kind == "retract")
    judged = {event.task: event for event in reversed(rows.load_events(connection, gold, ~retracted))}
    table, about = schema.exclusions.c, schema.exclusions.alias()
    own = (table.person == name) & (table.annotator == name)
    answered = sa.exists().where(about.c.sequence == table.target, about.c.person == name, about.c.annotator == name)
    decisions = rows.load_exclusions(connection, own | answered, table.project == project)
    return Standing(tuple(reversed(judged.values())), tuple(decisions))


def gold_share(connection: Connection, judged: tuple[Event, ...]) -> Share:
    """Judgements of gold that are right, by every axis that has a known answer."""
    tasks = {event.task: rows.load_task(connection, event.task) for event in judged}
    axes = dict.fromkeys(("overall", *(axis for task in tasks.values() for axis in task.axes)))
    found = [
        gold_accuracy(comparisons(judged, tasks, axis), gold_units(tasks.values(), axis), ratings(judged, tasks, axis))
        for axis in axes
    ]
    return Share(sum(share.right for share in found), sum(share.of for share in found))


def review(connection: Connection, policy: QueuePolicy, name: str, project: str, now: float) -> None:
    """After a judgement of a project's gold: exclude from it who has not qualified, or fails attention checks."""
    if not (policy.qualify or policy.pause) or rows.load_annotator(connection, name).role != "annotator":
        return
    found = standing(connection, name, project)
    if found.paused:
        return
    reason = ""
    first = gold_share(connection, found.judged[: policy.qualify])
    if policy.qualify and not found.decisions and len(found.judged) >= policy.qualify and first.value < policy.qualified:
        reason = f"did not qualify: {first.right} of {first.of} known answers right"
    elif policy.pause:
        since = max((one.sequence for one in found.decisions), default=0)
        share = gold_share(connection, tuple(event for event in found.judged if event.sequence > since))
        if share.interval[1] < GOLD:
            reason = f"attention checks failed: {share.right} of {share.of} known answers right"
    if reason:
        body = {"annotator": name, "since": 0.0, "until": None, "reason": reason}
        rows.add_decision(connection, now, "exclude", name, body=body, project=project)
