"""How far each annotator may be trusted, by gold, repeats, speed, sides and the others; and what needs a third opinion.

Pure functions of comparisons (``judgements.py``). Who fails gold weighs nothing; beyond that nothing here takes a vote away: a
person decides, by ``Store.exclude``.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import numpy as np

from penstock.feedback.judgements import Comparison, Rating, Said, Unit, sign_table
from penstock.feedback.quality.agreement import wilson_interval
from penstock.feedback.quality.dawid_skene import IMAGINED, USUAL, dawid_skene, vote_weights

Part = TypeVar("Part", bound=Said)

ASKED = ("ask", "anchor")
"""Purposes of questions that annotators may differ on."""

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
TOLERANCE = 1 / 6
"""How far a rating may lie from the known one, as a share of the scale: one step of seven."""
SAME = 0.95
"""Share of ratings that are one and the same value, where those of the others are not."""
REFUTED_BY_GOLD = "gold refutes agreement"
ACCURACY = 0.4
"""Estimated accuracy below which somebody is likely to answer the opposite of what they think."""


# How weights are estimated:
USUALLY = 20.0
"""Imagined judgements of each annotator, 0.7 of them right. In simulations (docs/log.md) labels of 3 to 7 people are then
nearly as good as a majority's where all are alike, and nearly as good as the best weights' where they are not."""
MEASURED = 5
"""Judgements of gold from which on gold may refute what agreement says."""
REFUTED = 0.05
"""Chance, divided by the number of annotators, below which it does."""


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
    judgements: int = 0
    gold: Share = Share(0, 0)
    consistency: Share = Share(0, 0)
    hasty: Share = Share(0, 0)
    left: Share = Share(0, 0)
    """Votes for what was shown first, of those for either side."""
    accuracy: float = math.nan
    """Estimated from agreement with the others (Dawid-Skene); NaN if they share no unit with anybody."""
    weight: float = math.nan
    concerns: tuple[str, ...] = ()


def gold_accuracy(found: Iterable[Comparison], gold: Mapping[Unit, float], rated: Iterable[Rating] = ()) -> Share:
    """Judgements of gold units whose direction (first, tie, second) is the right one, of a ranking that of most of its pairs,
    and ratings of single responses that are close to the known ones."""
    said: defaultdict[int, list[bool]] = defaultdict(list)
    for comparison in found:
        if comparison.unit in gold:
            said[comparison.event.sequence].append(bool(comparison.sign == np.sign(gold[comparison.unit])))
    right = [2 * sum(pairs) > len(pairs) for pairs in said.values()]
    for one in rated:
        if one.alone and one.known is not None:
            low, high = one.task.scale
            right.append(abs(one.value - one.known) <= TOLERANCE * (high - low) + 1e-9)
    return Share(int(sum(right)), len(right))


def self_consistency(found: Sequence[Comparison]) -> Share:
    """Repeats (of one annotator) that have the direction of the judgement they repeat."""
    first: dict[Unit, int] = {}
    agreed = repeated = 0
    for comparison in sorted(found, key=lambda comparison: comparison.event.sequence):
        if comparison.unit not in first:
            first[comparison.unit] = comparison.sign
        elif comparison.purpose == "repeat":
            repeated += 1
            agreed += comparison.sign == first[comparison.unit]
    return Share(agreed, repeated)


def hasty_share(found: Sequence[Said], reading: float) -> Share:
    """Judgements made faster than ``reading`` characters a second, of those with a known latency."""
    timed = [one for one in found if one.event.latency >= 0]
    return Share(sum(one.characters > reading * one.event.latency for one in timed), len(timed))


def left_share(found: Sequence[Comparison]) -> Share:
    """Judgements for the side shown first, of those that take a side."""
    sided = [comparison.sign * comparison.side for comparison in found if comparison.sign and comparison.side]
    return Share(sum(side > 0 for side in sided), len(sided))


def binomial_chance(share: Share, chance: float = 0.5) -> float:
    """Chance that what has this ``chance`` happens at least as rarely, or at least as often, as in the share: twice the smaller
    tail of the binomial distribution."""

    def tail(right: int, chance: float) -> float:
        odds = [(count, share.of - count) for count in range(right + 1)]
        log_chance, log_other = math.log(chance), math.log1p(-chance)
        return sum(math.exp(_log_choose(share.of, yes) + yes * log_chance + no * log_other) for yes, no in odds)

    return min(1.0, 2 * min(tail(share.right, chance), tail(share.of - share.right, 1 - chance)))


def _log_choose(total: int, chosen: int) -> float:
    return math.lgamma(total + 1) - math.lgamma(chosen + 1) - math.lgamma(total - chosen + 1)


class Reliability(NamedTuple):
    """How far an annotator is to be trusted."""

    accuracy: float
    """How often they are estimated to be right."""
    weight: float
    """What their vote is worth, in log-odds."""
    refuted: bool = False
    """Whether gold says surely something else of them than agreement with the others does."""


def reliability(
    found: Sequence[Comparison], gold: Mapping[Unit, float], rated: Sequence[Rating] = ()
) -> dict[str, Reliability]:
    """Each annotator's reliability, estimated by Dawid-Skene together with units' labels: the first response is better (0), or
    the second (1).

    Gold units have their label; who fails gold decides no label and weighs nothing. Ties say nothing here; without a judgement
    that takes a side on :func:`shared` units there is nothing to estimate. The estimate takes errors to be independent. Where
    gold refutes it for somebody (a binomial test at 5% over all), people err together, agreement is no evidence, and gold alone
    decides what everybody's word is worth.
    """
    failed = fail_gold(found, gold, rated)
    compared = shared(found, gold)
    units, annotators, sign_AU = sign_table(compared)
    if not units:
        return dict.fromkeys(failed, Reliability(float("nan"), 0.0))
    label_U = np.array([-1 if not gold.get(unit) else int(gold[unit] < 0) for unit in units])
    silent_A = np.array([name in failed for name in annotators])
    label_AU = np.select([np.isnan(sign_AU), sign_AU > 0], [-1, 0], 1)
    estimate = dawid_skene(label_AU, 2, known_U=label_U, silent_A=silent_A, alike=USUALLY)
    compared_by, rated_by = _by_annotator(found), _by_annotator(rated)
    known = [gold_accuracy(compared_by[name], gold, rated_by[name]) for name in annotators]
    level = REFUTED / len(annotators)
    refuted = [
        share.of >= MEASURED and name not in failed and binomial_chance(share, accuracy) < level
        for name, share, accuracy in zip(annotators, known, estimate.accuracy_A, strict=True)
    ]
    accuracy_A, weight_A = estimate.accuracy_A, estimate.weight_A
    if any(refuted):
        accuracy_A = np.array([(share.right + IMAGINED * USUAL) / (share.of + IMAGINED) for share in known])
        weight_A = vote_weights(accuracy_A, 2)
    measured = zip(accuracy_A.tolist(), np.where(silent_A, 0.0, weight_A).tolist(), refuted, strict=True)
    found_by = dict(zip(annotators, (Reliability(*one) for one in measured), strict=True))
    return dict.fromkeys(failed, Reliability(float("nan"), 0.0)) | found_by


def fail_gold(found: Iterable[Comparison], gold: Mapping[Unit, float], rated: Iterable[Rating] = ()) -> set[str]:
    """Annotators whose accuracy on gold surely lies below :data:`GOLD`."""
    compared, given = _by_annotator(one for one in found if one.unit in gold), _by_annotator(rated)
    names = compared.keys() | given.keys()
    return {name for name in names if gold_accuracy(compared[name], gold, given[name]).interval[1] < GOLD}


def _by_annotator(found: Iterable[Part]) -> defaultdict[str, list[Part]]:
    made: defaultdict[str, list[Part]] = defaultdict(list)
    for one in found:
        made[one.annotator].append(one)
    return made


def shared(found: Iterable[Comparison], gold: Mapping[Unit, float]) -> list[Comparison]:
    """Judgements that take a side, on gold and on units where two or more annotators do; repeats left out.

    Only these compare anybody with somebody else. A unit that one annotator alone has judged agrees with them by itself: enough
    of those, and one who contradicts all others would be estimated to be the one who is right.
    """
    sided = [comparison for comparison in found if comparison.sign and comparison.purpose != "repeat"]
    judges: dict[Unit, set[str]] = defaultdict(set)
    for comparison in sided:
        judges[comparison.unit].add(comparison.annotator)
    return [comparison for comparison in sided if len(judges[comparison.unit]) > 1 or gold.get(comparison.unit)]


def assess(found: Sequence[Comparison], gold: Mapping[Unit, float], rated: Sequence[Rating] = ()) -> list[AnnotatorQuality]:
    """What the judgements say about each annotator, by name.

    Args:
        found: comparisons in force, gold and repeats among them.
        gold: the right preference of each gold unit.
        rated: ratings in force, on any axes; only those of single responses say more than the comparisons do.
    """
    alone = [one for one in rated if one.alone]
    compared, given, estimated = _by_annotator(found), _by_annotator(alone), reliability(found, gold, alone)
    odd, unlike = odd_ratings(alone)
    report = []
    for name in sorted(compared.keys() | given.keys()):
        mine, ratings = compared[name], given[name]
        accuracy, weight, refuted = estimated.get(name, Reliability(float("nan"), 0.0))
        quality = AnnotatorQuality(
            annotator=name,
            judgements=len({one.event.sequence for one in (*mine, *ratings)}),
            gold=gold_accuracy(mine, gold, ratings),
            consistency=self_consistency(mine),
            hasty=hasty_share([*mine, *ratings], READING),
            left=left_share(mine),
            accuracy=accuracy,
            weight=weight if mine or name in estimated else float("nan"),
        )
        seen = {REFUTED_BY_GOLD: refuted, "one rating": name in odd, "against the others": name in unlike}
        report.append(_with_concerns(quality, len(compared.keys() | given.keys()), seen))
    return report


def _with_concerns(quality: AnnotatorQuality, annotators: int, seen: Mapping[str, bool]) -> AnnotatorQuality:
    enough = quality.judgements >= ENOUGH
    checks = {
        "gold": quality.gold.interval[1] < GOLD,
        "inconsistent": quality.consistency.interval[1] < CONSISTENCY,
        "hasty": enough and quality.hasty.of > 0 and quality.hasty.value > HASTY,
        "one side": enough and binomial_chance(quality.left) < SIDE / annotators,
        **seen,
        "against the others": seen["against the others"] or (enough and quality.accuracy < ACCURACY),
    }
    return replace(quality, concerns=tuple(name for name, concerned in checks.items() if concerned))


def odd_ratings(rated: Sequence[Rating]) -> tuple[set[str], set[str]]:
    """Annotators who give nearly always the same rating to what others rate differently, and those whose ratings surely fall
    where the others' mean rises: the correlation's 95% interval (Fisher) is below 0."""
    values_of: defaultdict[tuple[str, ...], dict[str, float]] = defaultdict(dict)
    for one in rated:
        values_of[*one.unit, one.axis].setdefault(one.annotator, one.value)
    monotonous, contrary = set(), set()
    for name, mine in _by_annotator(rated).items():
        others = [[value for who, value in values_of[*one.unit, one.axis].items() if who != name] for one in mine]
        alike, elsewhere = _commonest([one.value for one in mine]), _commonest([value for values in others for value in values])
        if len(mine) >= ENOUGH and alike >= SAME > elsewhere:
            monotonous.add(name)
        pairs = [(one.value, np.mean(values)) for one, values in zip(mine, others, strict=True) if values]
        own_U, mean_U = np.array(pairs, np.float64).reshape(-1, 2).T
        if len(pairs) >= ENOUGH and own_U.std() and mean_U.std():
            together = float(np.clip(np.corrcoef(own_U, mean_U)[0, 1], -0.999999, 0.999999))
            if math.atanh(together) + 1.96 / math.sqrt(len(pairs) - 3) < 0:
                contrary.add(name)
    return monotonous, contrary


def _commonest(values: Sequence[float]) -> float:
    """The share of the commonest value; 1 of nothing."""
    return max(Counter(values).values()) / len(values) if values else 1.0


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
        elif comparison.purpose in ASKED:
            votes[comparison.unit].append((comparison.sign, weights.get(comparison.annotator, 0.0)))
    split = {unit: signs for unit, signs in votes.items() if unit not in settled and len({sign for sign, _ in signs}) > 1}
    chance = {unit: preference_probability(signs) for unit, signs in split.items()}
    unsure = [unit for unit, p in chance.items() if max(p, 1 - p) < sure]
    return sorted(unsure, key=lambda unit: (abs(chance[unit] - 0.5), unit))
