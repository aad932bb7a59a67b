"""How a queue hands tasks out, as a value: the service's flags, and what a project sets for itself (``projects.py``)."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.feedback.errors import FeedbackError


@dataclass(frozen=True)
class QueuePolicy:
    """How tasks are handed out. Shares are of all that an annotator is given; what a share cannot fill goes to the rest."""

    lease_seconds: float = 900.0
    """Seconds for which an annotator keeps a task."""
    held: int = 2
    """Tasks that an annotator may keep at once: the one on the screen and the one fetched ahead."""
    gold_share: float = 0.08
    """Share of tasks whose answer is known."""
    repeat_share: float = 0.04
    """Share of tasks that an annotator answers again."""
    repeat_after: int = 20
    """Judgements of the annotator between a task and its repeat."""
    qualify: int = 0
    """Gold tasks that a new annotator answers before everything else."""
    qualified: float = 0.7
    """Accuracy on those from which they are admitted; the votes of others do not count."""
    pause: bool = False
    """Pause annotators who surely fail gold, until an administrator includes them again."""
    quota: int = 0
    """Answers that one annotator may give; 0: any number."""
    seed: int = 0
    """Of the order in which tasks are handed out."""

    def __post_init__(self) -> None:
        if not (0 <= self.qualify <= 10_000 and 0 <= self.quota <= 10**9 and 0 <= self.qualified <= 1):
            raise FeedbackError("qualify is from 0 to 10,000, quota from 0 to 1,000,000,000, qualified a share from 0 to 1")
        if self.lease_seconds <= 0 or self.held < 1 or self.repeat_after < 1:
            raise FeedbackError("lease_seconds must be positive, held and repeat_after at least 1")
        if min(self.gold_share, self.repeat_share) < 0 or self.gold_share + self.repeat_share > 0.5:
            raise FeedbackError("gold_share and repeat_share are shares of 0 or more, at most one half together")
