"""What a log of events amounts to: a pure function of it, whatever the database's own indices say."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.feedback.errors import FeedbackError
from penstock.feedback.records import JUDGEMENTS, PASSES, REMARKS, WITHDRAWALS, Event


@dataclass
class State:
    """What is in force after a log: each annotator's judgement or pass of each task, and the remarks; nothing taken back."""

    standing: dict[tuple[str, str], Event] = field(default_factory=dict)
    """By (task, annotator): the judgement, skip or flag in force."""
    remarks: dict[int, Event] = field(default_factory=dict)
    """By sequence: edits and critiques in force."""
    retracted: set[tuple[str, str]] = field(default_factory=set)
    """(task, annotator) whose judgement an administrator took back; the annotator is not asked again."""
    exclusions: dict[int, Event] = field(default_factory=dict)
    """By sequence: exclusions in force."""
    demoted: set[str] = field(default_factory=set)
    """Gold tasks that are gold no more."""

    def judgements(self) -> list[Event]:
        """Votes, ratings and rankings that count, in the order of the log."""
        return self._counted(event for event in self.standing.values() if event.kind in JUDGEMENTS)

    def edits(self) -> list[Event]:
        """Edits and corrections that count, in the order of the log."""
        said = (*self.remarks.values(), *self.standing.values())
        return self._counted(event for event in said if event.kind in ("edit", "correction"))

    def _counted(self, events: Iterable[Event]) -> list[Event]:
        """Those of nobody who is excluded for the time, in order."""
        of: dict[str, list[Event]] = defaultdict(list)
        for exclusion in self.exclusions.values():
            of[exclusion.body["annotator"]].append(exclusion)
        kept = (event for event in events if not any(_excludes(one, event) for one in of.get(event.annotator, ())))
        return sorted(kept, key=lambda event: event.sequence)


def _excludes(exclusion: Event, event: Event) -> bool:
    """Whether what its annotator said then, in that project, does not count."""
    until = math.inf if exclusion.body["until"] is None else exclusion.body["until"]
    return exclusion.project in ("", event.project) and bool(exclusion.body["since"] <= event.time < until)


def fold(events: Iterable[Event], project: str | None = None) -> State:
    """The state after ``events``, given in the order of their sequence; of one project, or of all.

    Raises:
        FeedbackError: the log is not one that the store could have written: a gap, two answers to one task by one
            annotator, a withdrawal of nothing.
    """
    state, expected, seen = State(), 1, dict[int, Event]()
    for event in events:
        if event.sequence != expected:
            raise FeedbackError(f"the log has event {event.sequence} where {expected} should be")
        expected += 1
        place = (event.task, event.annotator)
        if event.kind == "removed" or (project is not None and event.project not in ("", project)):
            continue
        if event.kind == "exclude":
            state.exclusions[event.sequence] = event
        elif event.kind == "include":
            if state.exclusions.pop(event.target, None) is None:
                raise FeedbackError(f"event {event.sequence} takes back exclusion {event.target}, which is not in force")
        elif event.kind == "promote":
            state.demoted.discard(event.task)
        elif event.kind == "demote":
            state.demoted.add(event.task)
        elif event.kind in WITHDRAWALS:
            _withdraw(state, seen.pop(event.target, None), event)
        elif event.kind in REMARKS:
            seen[event.sequence] = state.remarks[event.sequence] = event
        elif event.kind in JUDGEMENTS | PASSES:
            if place in state.standing or place in state.retracted:
                raise FeedbackError(f"event {event.sequence}: a second answer of {event.annotator} to task {event.task}")
            seen[event.sequence] = state.standing[place] = event
        else:
            raise FeedbackError(f"event {event.sequence}: unknown kind {event.kind!r}; update Penstock")
    return state


def _withdraw(state: State, target: Event | None, event: Event) -> None:
    if target is None:
        raise FeedbackError(f"event {event.sequence} takes back event {event.target}, which is not in force")
    if target.kind in REMARKS:
        del state.remarks[target.sequence]
        return
    place = (target.task, target.annotator)
    del state.standing[place]
    if event.kind == "retract":
        state.retracted.add(place)
