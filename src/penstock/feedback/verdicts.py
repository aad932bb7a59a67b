"""What the votes of a round say: about annotators, about the reward models, and about the policy that was asked about."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from penstock.feedback.asking import DUEL, Asked, anchored, judged_pairs
from penstock.feedback.errors import FeedbackError
from penstock.feedback.exchange.snapshot import Votes
from penstock.feedback.judgements import Comparison, sign_table
from penstock.feedback.quality.agreement import krippendorff_alpha
from penstock.feedback.quality.drift import preferred
from penstock.feedback.quality.reliability import REFUTED_BY_GOLD, AnnotatorQuality, Share, assess
from penstock.feedback.quality.report_card import Evidence, Gate, ReportCard, report_card


@dataclass(frozen=True)
class Verdict:
    """The outcome of a round. ``card`` is None where the policy is judged by nothing."""

    name: str
    questions: Mapping[str, int]
    """Questions of the round, by strategy."""
    votes: int
    """Votes on them by annotators who count."""
    alpha: float
    """Krippendorff's alpha of the votes on this round's questions; NaN where undefined."""
    annotators: Sequence[AnnotatorQuality]
    """From the whole log."""
    proxy: Sequence[float]
    gold: Sequence[float]
    """Sums over the rounds of how far the expected and the true share of won duels lie above one half; the first is 0."""
    card: ReportCard | None

    def because(self) -> str:
        """Why the policy was held back; empty if it was not."""
        return "; ".join(self.card.failures) if self.card else ""

    def metrics(self) -> dict[str, float]:
        """The numbers for a run's log; what is undefined is left out."""
        found = {"asked/votes": float(self.votes), "asked/alpha": self.alpha}
        found |= {f"weight/{one.annotator}": one.weight for one in self.annotators}
        if self.card is not None:
            card = self.card
            found |= {"card/passed": float(card.passed), "card/accuracy": card.accuracy.value}
            found |= {"card/wins": card.wins.value, "card/wins_low": card.wins.low, "card/wins_high": card.wins.high}
            found |= {"card/sure": card.wins.above_half, "card/expected_wins": card.expected}
            found |= {"card/duels": float(card.wins.of), "card/concerns": float(len(card.concerns))}
            if card.anchors is not None:
                found["card/anchor_change"] = card.anchors.change
        return {name: float(value) for name, value in found.items() if math.isfinite(value)}

    def told(self) -> list[dict[str, Any]]:
        """Lines for a run's log: one for each annotator, one for the report card."""
        lines: list[dict[str, Any]] = [
            {
                "what": "annotator",
                "name": one.annotator,
                "judgements": one.judgements,
                "accuracy": _rounded(one.accuracy),
                "weight": f"{one.weight:.2f}",
                "concerns": ", ".join(one.concerns) or "none",
            }
            for one in self.annotators
        ]
        if (card := self.card) is not None:
            line = {
                "what": "report card",
                "verdict": "passed" if card.passed else "held back",
                "won": f"{card.wins} duels",
                "sure": _rounded(card.wins.above_half),
                "expected": _rounded(card.expected),
                "accuracy": str(card.accuracy),
                "agreement": f"{card.agreement.value:.1%} of {card.agreement.of}",
                "anchors": _rounded(card.anchors.change) if card.anchors else "none",
                "longer preferred": f"people {card.length.people.value:.0%}, model {card.length.model.value:.0%}",
                "failures": self.because() or "none",
                "concerns": "; ".join(card.concerns) or "none",
            }
            lines.append(line)
        return lines

    def plain(self) -> dict[str, Any]:
        """As JSON values; what is undefined is null."""
        text = json.dumps(asdict(self), default=lambda value: value.item())  # of numpy
        found: dict[str, Any] = json.loads(text, parse_constant=lambda name: None)  # NaN, an infinity
        return found


def _rounded(value: float) -> float | str:
    return round(value, 3) if math.isfinite(value) else "unknown"


def gate_of(fields: Mapping[str, float]) -> Gate:
    """A gate from plain values. Raises FeedbackError for a field it does not have."""
    unknown = set(fields) - set(Gate.__dataclass_fields__)
    if unknown:
        raise FeedbackError(f"gate: unknown field {sorted(unknown)[0]!r}; known are: {', '.join(Gate.__dataclass_fields__)}")
    return Gate(**{**fields, **({"cell": int(fields["cell"])} if "cell" in fields else {})})  # type: ignore[arg-type]


def judged(
    name: str,
    asked: Sequence[Asked],
    votes: Votes,
    last: Sequence[Asked],
    earlier: Sequence[Mapping[str, Any]],
    gate: Mapping[str, float] | None,
) -> Verdict:
    """Judge a round by the votes so far.

    Args:
        name: of the round, and of the checkpoint on its card.
        asked: its questions.
        votes: everything that counts in the log.
        last: the questions of the round before, whose anchors were asked again.
        earlier: :meth:`Verdict.plain` of the rounds before, the oldest first.
        gate: what a policy must show; None: there is nothing to judge it against.

    Raises:
        FeedbackError: there is a gate and not one vote on a random pair.
    """
    tasks = {one.task.id for one in asked}
    everything: list[Comparison] = [comparison for said in votes.said.values() for comparison in said]
    here = [comparison for comparison in everything if comparison.task.id in tasks]
    _, _, sign_AU = sign_table(here)
    duels, quality = judged_pairs(asked, votes, DUEL), assess(everything, votes.gold)
    proxy, gold = (list(earlier[-1][kind]) if earlier else [0.0] for kind in ("proxy", "gold"))
    if duels:
        expected = sum(duel.margin > 0 for duel in duels) / len(duels)
        proxy, gold = [*proxy, proxy[-1] + expected - 0.5], [*gold, gold[-1] + preferred(duels).value - 0.5]
    card = None
    if gate is not None:
        cards = [one["card"] for one in earlier if one["card"]]
        first = cards[0]["agreement"] if cards else None
        evidence = Evidence(
            checkpoint=name,
            duels=duels,
            pairs=judged_pairs(asked, votes),
            accepted=Share(first["right"], first["of"]) if first else None,
            lost=cards[-1].get("drift", {"total": 0.0})["total"] if cards else 0.0,  # older cards carried none
            group_names=tuple(sorted({group for one in asked for group in one.task.item.groups})),
            anchors=anchored(asked, last, votes),
            proxy=proxy,
            wins=gold,
            gold=sum(comparison.unit in votes.gold for comparison in everything),
            refuted=[one.annotator for one in quality if REFUTED_BY_GOLD in one.concerns],
        )
        card = report_card(evidence, gate_of(gate))
    chosen = dict(Counter(one.task.strategy for one in asked))
    alpha = krippendorff_alpha(sign_AU) if sign_AU.size else float("nan")
    return Verdict(name, chosen, len(here), alpha, quality, proxy, gold, card)
