"""What a log of events amounts to: a pure function of it, whatever the database's own indices say."""

from __future__ import annotations

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

    def judgements(self) -> list[Event]:
        """Votes, ratings and rankings in force, in the order of the log."""
        kept = [event for event in self.standing.values() if event.kind in JUDGEMENTS]
        return sorted(kept, key=lambda event: event.sequence)


def fold(events: Iterable[Event]) -> State:
    """The state after ``events``, given in the order of their sequence.

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
        if event.kind in WITHDRAWALS:
            _withdraw(state, seen.pop(event.target, None), event)
            continue
        seen[event.sequence] = event
        if event.kind in REMARKS:
            state.remarks[event.sequence] = event
        elif event.kind in JUDGEMENTS | PASSES:
            if place in state.standing or place in state.retracted:
                raise FeedbackError(f"event {event.sequence}: a second answer of {event.annotator} to task {event.task}")
            state.standing[place] = event
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
