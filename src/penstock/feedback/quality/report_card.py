"""One page of numbers per checkpoint, and whether it may be promoted: pure data, for a page or a gate to show.

A policy is promoted because people prefer it to the one before, and for nothing else: that is what fresh blind duels measure.
What casts doubt on the reward models is a *concern*: a reason to look, and to trust the next round of training less, but no
reason to drop a policy that people prefer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from penstock.feedback.errors import FeedbackError
from penstock.feedback.quality.drift import (
    AnchorChange,
    Drift,
    JudgedPair,
    LengthBias,
    accuracy,
    agreement,
    by_group,
    cusum,
    diverged,
    length_bias,
    preferred,
)
from penstock.feedback.quality.reliability import Share
from penstock.feedback.quality.true_share import TrueShare


@dataclass(frozen=True)
class Gate:
    """What a checkpoint must show (``sure``, ``lost``), and what is cause for concern. Smaller groups decide nothing."""

    sure: float = 0.95
    """Least chance, by the duels, that people prefer the checkpoint to what it is judged against."""
    lost: float = 0.05
    """Chance of error, over all groups together, at which a group is taken to prefer the weights before; 0: never."""
    cell: int = 30
    """Pairs a group must have."""
    accuracy: float = 0.55
    """Concern: the reward models' accuracy is not surely as high, votes' errors taken out."""
    worst_group: float = 0.5
    """Concern: their accuracy in a group is surely lower."""
    gap: float = 0.25
    """Concern: the share of duels they expected to be won is surely this much higher than the share won."""
    length: float = 0.15
    """Concern: they prefer the longer response surely, and by this much, more often than people do."""
    anchors: float = 0.01
    """Concern: people's answers to old questions have changed by what luck brings about with a smaller chance."""
    slack: float = 0.05
    threshold: float = 10.0
    """Concern: agreement has drifted down from that of the first card, see :func:`drift.cusum`."""

    def __post_init__(self) -> None:
        names = ("sure", "lost", "accuracy", "worst_group", "gap", "length", "anchors")
        if self.cell < 1 or not all(0 <= getattr(self, name) <= 1 for name in names):
            raise FeedbackError(f"cell is at least 1, and {', '.join(names)} lie between 0 and 1")


@dataclass(frozen=True)
class Evidence:
    """What is known of a checkpoint."""

    checkpoint: str
    duels: Sequence[JudgedPair]
    """Fresh pairs of a sample of the checkpoint, first, and one of the weights before."""
    pairs: Sequence[JudgedPair]
    """Fresh votes on random pairs of the checkpoint's own samples, the oldest first."""
    gold: int = 0
    """Judgements of gold by annotators who count."""
    refuted: Sequence[str] = ()
    """Annotators of whom gold says surely something else than agreement with the others."""
    accepted: Share | None = None
    """Agreement of reward models and votes on the first card; None: this is the first."""
    lost: float = 0.0
    """The total of drift after the card before."""
    group_names: tuple[str, ...] = ()
    anchors: AnchorChange | None = None
    proxy: Sequence[float] = ()
    wins: Sequence[float] = ()
    """Proxy reward and people's score (win rate) of the checkpoints so far, this one last."""

    @property
    def expected(self) -> float:
        """Share of the duels that reward models expect the checkpoint to win; NaN without duels."""
        return sum(duel.margin > 0 for duel in self.duels) / len(self.duels) if self.duels else float("nan")


@dataclass(frozen=True)
class ReportCard:
    """What a checkpoint shows. It passes if ``failures`` is empty; ``concerns`` decide nothing."""

    checkpoint: str
    wins: TrueShare
    """Duels in which people prefer the checkpoint."""
    expected: float
    """Share of them that reward models expect it to win; NaN without duels."""
    group_wins: Mapping[str, Mapping[str, TrueShare]]
    accuracy: TrueShare
    """Of the reward models."""
    agreement: Share
    """Of the reward models with the votes as they are."""
    drift: Drift
    """Since the first card."""
    groups: Mapping[str, Mapping[str, TrueShare]]
    """Accuracy of the reward models by group."""
    length: LengthBias
    anchors: AnchorChange | None
    hacking_gap: float | None
    """How much more the proxy gained since the first checkpoint than the gold score did; None without both."""
    failures: tuple[str, ...] = ()
    concerns: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return not self.failures


Cells = Mapping[str, Mapping[str, TrueShare]]


def report_card(evidence: Evidence, gate: Gate | None = None) -> ReportCard:
    """Judge a checkpoint. Raises FeedbackError: there is not one vote: nothing can be said, and silence must not pass."""
    gate = gate or Gate()
    if not evidence.pairs and not evidence.duels:
        raise FeedbackError(f"{evidence.checkpoint}: no vote on a duel or a random pair; ask people about it first")
    pairs, duels, names = evidence.pairs, evidence.duels, evidence.group_names
    wins: Cells = {name: {value: preferred(of) for value, of in by_group(duels, name).items()} for name in names}
    groups: Cells = {name: {value: accuracy(of) for value, of in by_group(pairs, name).items()} for name in names}
    drift = Drift(0.0, None)
    if evidence.accepted is not None and evidence.accepted.of:
        drift = cusum([pair.correct for pair in pairs], evidence.accepted, gate.slack, gate.threshold, evidence.lost)
    gained = [each[-1] - each[0] for each in (evidence.proxy, evidence.wins) if len(each) > 1]
    card = ReportCard(
        checkpoint=evidence.checkpoint,
        wins=preferred(duels),
        expected=evidence.expected,
        group_wins=wins,
        accuracy=accuracy(pairs),
        agreement=agreement(pairs),
        drift=drift,
        groups=groups,
        length=length_bias(pairs),
        anchors=evidence.anchors,
        hacking_gap=gained[0] - gained[1] if len(gained) == 2 else None,
    )
    return replace(card, failures=_failures(card, gate), concerns=_concerns(card, gate, evidence))


def _failures(card: ReportCard, gate: Gate) -> tuple[str, ...]:
    """Why the checkpoint may not be promoted: people do not surely prefer it, or some group surely prefers what was before."""
    found = []
    if card.wins.above_half < gate.sure:
        chance = f"a chance of {card.wins.above_half:.1%}, {gate.sure:.0%} is wanted"
        found.append(f"not surely better than the weights before: won {card.wins} duels ({chance})")
    cells = _cells(card.group_wins, gate)
    # A share of the error for each group: with many groups one of them would look lost by luck.
    lost = [(name, wins) for name, wins in cells if wins.above_half < gate.lost / len(cells)]
    found += [f"{name} prefers the weights before: won {wins} duels" for name, wins in lost]
    return tuple(found)


def _concerns(card: ReportCard, gate: Gate, evidence: Evidence) -> tuple[str, ...]:
    """Why the reward models, or the annotators, should be looked at before the next round is trained."""
    people, model = card.length.people, card.length.model
    first = evidence.accepted.value if evidence.accepted else math.nan
    worst = [name for name, share in _cells(card.groups, gate) if share.high < gate.worst_group]
    checks = {
        f"the reward models' accuracy, {card.accuracy}, is not surely above {gate.accuracy:.0%}": card.accuracy.low
        < gate.accuracy,
        f"their agreement has drifted below {first:.1%} (alarm at vote {card.drift.alarm})": card.drift.alarm is not None,
        f"their accuracy is below {gate.worst_group:.0%} for {', '.join(worst)}": bool(worst),
        f"they expected {card.expected:.1%} of the duels to be won": card.expected - card.wins.high > gate.gap,
        "they prefer length more than people do": model.of > 0
        and model.value - people.value > gate.length
        and model.interval[0] > people.high,
        "people judge the anchors differently than before": bool(card.anchors and card.anchors.chance < gate.anchors),
        "the proxy rises while people's score falls": diverged(evidence.proxy, evidence.wins),
        "nobody has judged gold: a majority that is right looks like one that colludes": evidence.gold == 0,
        f"gold refutes the agreement of {', '.join(evidence.refuted)}: people err together": bool(evidence.refuted),
    }
    return tuple(reason for reason, found in checks.items() if found)


def _cells(shares: Cells, gate: Gate) -> list[tuple[str, TrueShare]]:
    """Groups with enough pairs, as ``name=value``."""
    return [(f"{name}={value}", share) for name, of in shares.items() for value, share in of.items() if share.of >= gate.cell]
