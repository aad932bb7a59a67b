"""One page of numbers per checkpoint, and whether it may be promoted: pure data, for a page or a gate to show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.feedback.errors import FeedbackError
from penstock.feedback.quality.drift import (
    AnchorChange,
    JudgedPair,
    LengthBias,
    accuracy,
    cusum,
    diverged,
    group_accuracy,
    length_bias,
)
from penstock.feedback.quality.reliability import Share


@dataclass(frozen=True)
class Gate:
    """What a checkpoint must show. A group with fewer than ``cell`` votes is shown and decides nothing."""

    accuracy: float = 0.55
    """Least accuracy on fresh random votes, by the lower end of its interval."""
    worst_group: float = 0.5
    """Least accuracy of any group, by the upper end of its interval: below it, the group is failed for certain."""
    cell: int = 30
    wins: float = 0.5
    """Least share of duels won against the weights before, by the upper end of its interval: below it, they are better."""
    length: float = 0.15
    """By how much more often than people the model may prefer the longer response; less than chance allows never fails."""
    anchors: float = 0.01
    """Chance below which the anchors' change is no luck."""
    slack: float = 0.05
    threshold: float = 10.0
    """Of the cumulative sum, see :func:`drift.cusum`."""

    def __post_init__(self) -> None:
        shares = (self.accuracy, self.worst_group, self.wins, self.length, self.anchors)
        if self.cell < 1 or not all(0 <= share <= 1 for share in shares):
            raise FeedbackError("cell is at least 1, and accuracy, worst_group, wins, length and anchors lie between 0 and 1")


@dataclass(frozen=True)
class Evidence:
    """What is known of a checkpoint."""

    checkpoint: str
    pairs: Sequence[JudgedPair]
    """Fresh votes on random pairs, the oldest first."""
    expected: float
    """The reward model's accuracy when it was accepted."""
    group_names: tuple[str, ...] = ()
    anchors: AnchorChange | None = None
    proxy: Sequence[float] = ()
    gold: Sequence[float] = ()
    """Proxy reward and gold score (win rate by people) of the checkpoints so far, this one last."""
    wins: Share | None = None
    """Duels with the weights before that people decide for this checkpoint; None without duels."""


@dataclass(frozen=True)
class ReportCard:
    """What a checkpoint shows. It passes if ``failures`` is empty."""

    checkpoint: str
    accuracy: Share
    drift_alarm: int | None
    groups: Mapping[str, Mapping[str, Share]]
    worst_group: tuple[str, str, Share] | None
    wins: Share | None
    length: LengthBias
    anchors: AnchorChange | None
    hacking_gap: float | None
    """How much more the proxy gained since the first checkpoint than the gold score did; None without both."""
    failures: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return not self.failures


def report_card(evidence: Evidence, gate: Gate | None = None) -> ReportCard:
    """Judge a checkpoint.

    Raises:
        FeedbackError: there is not one vote: nothing can be said, and silence must not pass.
    """
    gate = gate or Gate()
    if not evidence.pairs:
        raise FeedbackError(f"{evidence.checkpoint}: no vote on a random pair; ask people about it first")
    overall = accuracy(evidence.pairs)
    alarm = cusum([pair.correct for pair in evidence.pairs], evidence.expected, gate.slack, gate.threshold).alarm
    groups = {name: group_accuracy(evidence.pairs, name) for name in evidence.group_names}
    cells = [(name, value, share) for name, found in groups.items() for value, share in found.items() if share.of >= gate.cell]
    worst = min(cells, key=lambda cell: cell[2].value, default=None)
    length = length_bias(evidence.pairs)
    both = len(evidence.proxy) == len(evidence.gold) > 1
    gap = (evidence.proxy[-1] - evidence.proxy[0]) - (evidence.gold[-1] - evidence.gold[0]) if both else None
    checks = {
        f"accuracy {overall.value:.1%} is not surely above {gate.accuracy:.0%}": overall.interval[0] < gate.accuracy,
        f"accuracy has drifted below {evidence.expected:.1%} (alarm at vote {alarm})": alarm is not None,
        f"group {worst and '='.join(worst[:2])} is below {gate.worst_group:.0%}": bool(
            worst and worst[2].interval[1] < gate.worst_group
        ),
        f"people prefer the weights before (won {evidence.wins.value if evidence.wins else 0:.1%} of the duels)": bool(
            evidence.wins and evidence.wins.interval[1] < gate.wins
        ),
        "prefers length more than people do": length.model.of > 0
        and length.model.value - length.people.value > gate.length
        and length.model.interval[0] > length.people.interval[1],
        "people judge the anchors differently than before": bool(evidence.anchors and evidence.anchors.chance < gate.anchors),
        "the proxy rises while the gold score falls": diverged(evidence.proxy, evidence.gold),
    }
    failures = tuple(reason for reason, failed in checks.items() if failed)
    return ReportCard(
        evidence.checkpoint, overall, alarm, groups, worst, evidence.wins, length, evidence.anchors, gap, failures
    )
