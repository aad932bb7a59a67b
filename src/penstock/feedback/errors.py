"""What the feedback store refuses, one class for each answer that a service must tell apart."""

from __future__ import annotations

from penstock.core.errors import PenstockError


class FeedbackError(PenstockError):
    """The feedback store cannot be opened, or refuses what it was given; names what and the fix."""


class StoreUnavailable(FeedbackError):
    """The database does not answer or cannot write: busy beyond its deadline, full, unreachable, damaged."""


class NotFound(FeedbackError):
    """No such task, annotator or event."""


class NotAllowed(FeedbackError):
    """The annotator may not do this: not handed out to them, reserved for another, switched off, or not their role."""


class AlreadyAnswered(FeedbackError):
    """The annotator has answered or passed this task; undo that first."""


class SeatTaken(FeedbackError):
    """The lease has expired and others hold or have filled every seat of the task."""


class KeyReused(FeedbackError):
    """An idempotency key came again with other content."""


class NothingToUndo(FeedbackError):
    """The event named is not there, not the annotator's, or taken back already."""


class Overtaken(FeedbackError):
    """Somebody else has decided meanwhile; nothing was changed."""
