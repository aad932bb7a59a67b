"""How far each annotator may be trusted, by gold, repeats, speed, sides and the others; and what needs a third opinion.

Pure functions of comparisons (``judgements.py``). Nothing here takes a vote away: a person decides, by ``Store.retract``.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from penstock.feedback.judgements import Comparison, Unit, sign_table
from penstock.feedback.quality.agreement import wilson_interval
from penstock.feedback.quality.dawid_skene import dawid_skene

# When a person should look at an annotator:
ENOUGH = 20
"""Judgements before speed and sides are looked at."""
GOLD = 0.7
"""Accuracy on gold that must lie within (or below) the interval."""
CONSISTENCY = 0.6
"""Agreement with oneself on repeats, likewise."""
READING = 100.0
"""Characters a second beyond which nobody reads; people read 15 to 30."""
HASTY = 0.5
"""Share of judgements beyond that speed."""
SIDE = 0.001
"""Chance, divided by the number of annotators, below which a leaning to one side is no accident."""
ACCURACY = 0.4
"""Estimated accuracy below which somebody is likely to answer the opposite of what they think."""


@dataclass(frozen=True)
class Share:
    """So many of so many."""

    right: int
    of: int

    @property
    def value(self) -> float:
        """The share; NaN of nothing."""
        return self.right / self.of if self.of else float("nan")

    @property
    def interval(self) -> tuple[float, float]:
        """Its 95% interval (Wilson)."""
        return wilson_interval(self.right, self.of)


@dataclass(frozen=True)
class AnnotatorQuality:
    """What is known of one annotator. ``concerns`` names what a person should look at."""

    annotator: str
    judgements: int
    gold: Share
    consistency: Share
    hasty: Share
    left: Share
    """Votes for what was shown first, of those for either side."""
    accuracy: float
    """Estimated from agreement with the others (Dawid-Skene); NaN if they share no unit with anybody."""
    weight: float
    concerns: tuple[str, ...]


def gold_accuracy(found: Sequence[Comparison], gold: Mapping[Unit, float]) -> Share:
    """Judgements of gold units whose direction (first, tie, second) is the right one."""
    judged = [comparison for comparison in found if comparison.unit in gold]
    right = sum(comparison.sign == np.sign(gold[comparison.unit]) for comparison in judged)
    return Share(int(right), len(judged))


def self_consistency(found: Sequence[Comparison]) -> Share:
    """Repeats (of one annotator) that have the direction of the judgement they repeat."""
    first: dict[Unit, int] = {}
    agreed = repeated = 0
    for comparison in sorted(found, key=lambda comparison: comparison.sequence):
        if comparison.unit not in first:
            first[comparison.unit] = comparison.sign
        elif comparison.purpose == "repeat":
            repeated += 1
            agreed += comparison.sign == first[comparison.unit]
    return Share(agreed, repeated)


def hasty_share(found: Sequence[Comparison], reading: float) -> Share:
    """Judgements made faster than ``reading`` characters a second, of those with a known latency."""
    timed = [comparison for comparison in found if comparison.latency >= 0]
    return Share(sum(comparison.characters > reading * comparison.latency for comparison in timed), len(timed))


def left_share(found: Sequence[Comparison]) -> Share:
    """Judgements for the side shown first, of those that take a side."""
    sided = [comparison.sign * comparison.side for comparison in found if comparison.sign and comparison.side]
    return Share(sum(side > 0 for side in sided), len(sided))


def coin_chance(share: Share) -> float:
    """Chance that a fair coin lands at least as far from one half as this share: the exact two-sided binomial test."""
    if not share.of:
        return 1.0
    fewer = min(share.right, share.of - share.right)
    scale = share.of * math.log(2)
    tail = sum(math.exp(_log_choose(share.of, count) - scale) for count in range(fewer + 1))
    return min(1.0, 2 * tail)


def _log_choose(total: int, chosen: int) -> float:
    return math.lgamma(total + 1) - math.lgamma(chosen + 1) - math.lgamma(total - chosen + 1)


class Reliability(NamedTuple):
    """How far an annotator is to be trusted, by Dawid-Skene."""

    accuracy: float
    """How often they are estimated to be right."""
    weight: float
    """What their vote is worth, in log-odds."""


def reliability(found: Sequence[Comparison]) -> dict[str, Reliability]:
    """Each annotator's reliability, estimated together with units' labels: the first response is better (0), or the second (1).

    Ties say nothing here; without a judgement that takes a side there is nothing to estimate.
    """
    units, annotators, sign_AU = sign_table([comparison for comparison in found if comparison.sign])
    if not units:
        return {}
    estimate = dawid_skene(np.select([np.isnan(sign_AU), sign_AU > 0], [-1, 0], 1), 2)
    return dict(zip(annotators, map(Reliability, estimate.accuracy_A.tolist(), estimate.weight_A.tolist()), strict=True))


def shared(found: Iterable[Comparison]) -> list[Comparison]:
    """Judgements that take a side, on units where two or more annotators do; repeats left out.

    Only these compare anybody with somebody else. A unit that one annotator alone has judged agrees with them by itself: enough
    of those, and one who contradicts all others would be estimated to be the one who is right.
    """
    sided = [comparison for comparison in found if comparison.sign and comparison.purpose != "repeat"]
    judges: dict[Unit, set[str]] = defaultdict(set)
    for comparison in sided:
        judges[comparison.unit].add(comparison.annotator)
    return [comparison for comparison in sided if len(judges[comparison.unit]) > 1]


def assess(found: Sequence[Comparison], gold: Mapping[Unit, float]) -> list[AnnotatorQuality]:
    """What the judgements say about each annotator, by name.

    Args:
        found: comparisons in force, gold and repeats among them.
        gold: the right preference of each gold unit.
    """
    by_annotator: dict[str, list[Comparison]] = defaultdict(list)
    for comparison in found:
        by_annotator[comparison.annotator].append(comparison)
    estimated = reliability(shared(found))
    report = []
    for name, mine in sorted(by_annotator.items()):
        accuracy, weight = estimated.get(name, (float("nan"), 0.0))
        quality = AnnotatorQuality(
            annotator=name,
            judgements=len({comparison.sequence for comparison in mine}),
            gold=gold_accuracy(mine, gold),
            consistency=self_consistency(mine),
            hasty=hasty_share(mine, READING),
            left=left_share(mine),
            accuracy=accuracy,
            weight=weight,
            concerns=(),
        )
        report.append(_with_concerns(quality, len(by_annotator)))
    return report


def _with_concerns(quality: AnnotatorQuality, annotators: int) -> AnnotatorQuality:
    enough = quality.judgements >= ENOUGH
    checks = {
        "gold": quality.gold.interval[1] < GOLD,
        "inconsistent": quality.consistency.interval[1] < CONSISTENCY,
        "hasty": enough and quality.hasty.of > 0 and quality.hasty.value > HASTY,
        "one side": enough and coin_chance(quality.left) < SIDE / annotators,
        "against the others": enough and quality.accuracy < ACCURACY,
    }
    return replace(quality, concerns=tuple(name for name, concerned in checks.items() if concerned))


def preference_probability(signs: Sequence[tuple[int, float]]) -> float:
    """The chance that the first response is better, from (sign, weight in log-odds) of each vote; ties pull to neither side.

    ``σ(Σ weight · sign)``: Bayes' rule for independent voters of known accuracy and even odds before.
    """
    return 1 / (1 + math.exp(-max(-700.0, min(700.0, sum(sign * weight for sign, weight in signs)))))


def preference_share(signs: Sequence[tuple[int, float]], smoothing: float = 1.0) -> float:
    """The weighted share of votes for the first response, ties counting half to each, after ``smoothing`` votes of each kind.

    The label to train on where people differ in taste rather than in care.
    """
    total = sum(weight for _, weight in signs)
    first = sum(weight * (1 + sign) / 2 for sign, weight in signs)
    return (first + smoothing) / (total + 2 * smoothing) if total + smoothing > 0 else 0.5


def to_adjudicate(found: Sequence[Comparison], weights: Mapping[str, float], sure: float = 0.8) -> list[Unit]:
    """Units whose judgements differ and leave both answers likelier than ``1 - sure``; the least certain first."""
    votes: dict[Unit, list[tuple[int, float]]] = defaultdict(list)
    settled = set()
    for comparison in found:
        if comparison.purpose == "adjudication":
            settled.add(comparison.unit)
        elif comparison.purpose in ("ask", "anchor"):
            votes[comparison.unit].append((comparison.sign, weights.get(comparison.annotator, 0.0)))
    chance = {unit: preference_probability(signs) for unit, signs in votes.items() if _differ(signs) and unit not in settled}
    unsure = [unit for unit, p in chance.items() if max(p, 1 - p) < sure]
    return sorted(unsure, key=lambda unit: (abs(chance[unit] - 0.5), unit))


def _differ(signs: Sequence[tuple[int, float]]) -> bool:
    return len({sign for sign, _ in signs}) > 1
