"""Whether preferences, or a reward model's hold on them, change over time; and one report card per checkpoint.

Pure functions of what people said and what a model scored. Only votes on pairs chosen at random may go in: on pairs chosen
for being hard, accuracy says nothing about drift.

Shapes: ``N`` votes in the order of time, ``C`` checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from penstock.feedback.errors import FeedbackError
from penstock.feedback.judgements import Unit
from penstock.feedback.quality.reliability import Share
from penstock.feedback.quality.true_share import TrueShare, true_share

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Drift:
    """Accuracy lost since a model was accepted, beyond what chance allows."""

    total: float
    """After the last vote; the next round goes on from here."""
    alarm: int | None
    """The first vote at which it passed the threshold; None: it never did."""


def cusum(correct_N: ArrayLike, accepted: Share, slack: float = 0.05, threshold: float = 10.0, begun: float = 0.0) -> Drift:
    """Sum up ``s ← max(0, s + expected - slack - correct)`` over votes and see where it passes the threshold.

    ``expected`` is the accuracy when the model was accepted less one standard error of it: as an estimate of few pairs
    it is often too high by luck. By simulation, at an accuracy of 0.7, a model that holds alarms in 7, 5, 4 and 3% of
    runs of 300 votes where it was accepted by 40, 60, 100 and 200 pairs, and in about 15% of runs of 1,500. Accepted by
    200 pairs, a fall to 0.6 is found after 240 votes and one to 0.5 after 75 (medians). The sum is carried from round
    to round, at most at the threshold: a slow fall adds up, and an alarm lasts until the accuracy has come back.

    Args:
        correct_N: 1 where the model agreed with the vote, 0 where not, one half for a tie.
        accepted: the votes with which the model agreed when it was accepted.
        slack: loss of accuracy that is let pass.
        threshold: higher gives fewer false alarms and later true ones.
        begun: the total of the rounds before.

    SOURCE: Page 1954, "Continuous inspection schemes".

    Raises:
        FeedbackError: nothing to compare with, slack negative, or threshold not positive.
    """
    if not accepted.of or slack < 0 or threshold <= 0:
        raise FeedbackError(f"accepted={accepted}, slack={slack}, threshold={threshold}; give some votes, 0 or more, above 0")
    likely = (accepted.right + 1) / (accepted.of + 2)
    expected = accepted.value - (likely * (1 - likely) / accepted.of) ** 0.5
    total, alarm = begun, None
    for index, correct in enumerate(np.asarray(correct_N, np.float64).tolist()):
        total = min(max(0.0, total + expected - slack - correct), threshold + 1e-9)
        alarm = index if alarm is None and total > threshold else alarm
    return Drift(total, alarm)


@dataclass(frozen=True)
class AnchorChange:
    """How votes on the same pairs differ between two rounds."""

    anchors: int
    change: float
    """Mean over anchors of how far the share of votes for the first response moved, 0 to 1."""
    chance: float
    """Chance of at least this change if nothing but luck differs (permutation test)."""


def anchor_change(
    before: Mapping[Unit, Sequence[int]], after: Mapping[Unit, Sequence[int]], *, permutations: int = 2000, seed: int = 0
) -> AnchorChange:
    """Compare two rounds of signs (1, 0, -1) on the same units; units of one round alone are left out.

    Raises:
        FeedbackError: the rounds share no unit.
    """
    shared = sorted(unit for unit in before.keys() & after.keys() if before[unit] and after[unit])
    if not shared:
        raise FeedbackError("the two rounds share no anchor; ask the same ones again (select.anchors)")
    generator = np.random.Generator(np.random.Philox(seed))
    votes = [(np.array([*before[unit], *after[unit]], np.float64), len(before[unit])) for unit in shared]

    def moved(shuffled: bool) -> float:
        gaps = []
        for sign_N, cut in votes:
            mixed_N = generator.permutation(sign_N) if shuffled else sign_N
            gaps.append(abs(mixed_N[cut:].mean() - mixed_N[:cut].mean()) / 2)
        return float(np.mean(gaps))

    observed = moved(False)
    as_far = sum(moved(True) >= observed - 1e-12 for _ in range(permutations))
    return AnchorChange(len(shared), observed, (1 + as_far) / (1 + permutations))


@dataclass(frozen=True)
class JudgedPair:
    """What people say of a pair that no score has chosen, and what a reward model made of it before it saw a vote."""

    log_odds: float
    """Of the first response being the better one, by the votes: the sum of their signs times what each is worth. Not 0."""
    margin: float
    """The model's score of the first response less that of the second."""
    lengths: tuple[int, int]
    """Characters of the two responses."""
    groups: Mapping[str, str]

    @property
    def correct(self) -> bool:
        """Whether the model prefers what the votes lean to."""
        return self.margin * self.log_odds > 0


def agreement(pairs: Iterable[JudgedPair]) -> Share:
    """Pairs in which the model prefers what the votes lean to; with erring votes the best model does not reach 1."""
    right = [pair.correct for pair in pairs]
    return Share(sum(right), len(right))


def accuracy(pairs: Iterable[JudgedPair]) -> TrueShare:
    """Pairs in which the model prefers the better response, with the votes' errors taken out; equal scores say nothing."""
    return true_share([pair.log_odds * np.sign(pair.margin) for pair in pairs])


def preferred(pairs: Iterable[JudgedPair]) -> TrueShare:
    """Pairs whose first response is the better one, with the votes' errors taken out."""
    return true_share([pair.log_odds for pair in pairs])


def by_group(pairs: Sequence[JudgedPair], name: str) -> dict[str, list[JudgedPair]]:
    """The pairs of each value of one group, such as each language; pairs without it are left out."""
    values = sorted({pair.groups[name] for pair in pairs if name in pair.groups})
    return {value: [pair for pair in pairs if pair.groups.get(name) == value] for value in values}


@dataclass(frozen=True)
class LengthBias:
    """How far a reward model likes length for its own sake."""

    people: TrueShare
    """Pairs of unequal length in which people prefer the longer response."""
    model: Share
    """The same for the model; a larger share is bias."""
    matched: TrueShare
    """The model's accuracy where lengths differ by a tenth at most, so that length cannot help."""


def length_bias(pairs: Sequence[JudgedPair], close: float = 0.1) -> LengthBias:
    """Length among what people and the model prefer."""
    unequal = [pair for pair in pairs if pair.lengths[0] != pair.lengths[1] and pair.margin]
    longer = [1 if pair.lengths[0] > pair.lengths[1] else -1 for pair in unequal]
    people = true_share([pair.log_odds * side for pair, side in zip(unequal, longer, strict=True)])
    model = sum(np.sign(pair.margin) == side for pair, side in zip(unequal, longer, strict=True))
    near = [pair for pair in pairs if abs(pair.lengths[0] - pair.lengths[1]) <= close * max(*pair.lengths, 1)]
    return LengthBias(people, Share(int(model), len(unequal)), accuracy(near))


def diverged(proxy_C: Sequence[float], gold_C: Sequence[float], evaluations: int = 3) -> bool:
    """Whether, over the last evaluations in a row, the proxy rose and the gold fell each time: the mark of reward hacking.

    Raises:
        FeedbackError: unequal lengths.
    """
    if len(proxy_C) != len(gold_C):
        raise FeedbackError(f"{len(proxy_C)} proxy and {len(gold_C)} gold values; give one of each a checkpoint")
    if len(proxy_C) <= evaluations:
        return False
    rises, falls = np.diff(proxy_C)[-evaluations:], np.diff(gold_C)[-evaluations:]
    return bool((rises > 0).all() and (falls < 0).all())


def time_weights(time_N: ArrayLike, now: float, half_life: float) -> Floats:
    """What a vote of each time counts: one half after a half-life, a quarter after two, with a mean of 1.

    As a column that ``DPO(weight=…)`` names this is time-discounted DPO (NS-DPO: Son et al. 2024, arXiv 2407.18676), whose
    discount a step is ``0.5 ** (1 / half_life)``. The mean is kept at 1 so that the learning rate keeps its meaning.

    Raises:
        FeedbackError: no votes, votes of the future, or a half-life that is not positive.
    """
    age_N = now - np.asarray(time_N, np.float64)
    if half_life <= 0 or not age_N.size or age_N.min() < 0:
        raise FeedbackError(f"half_life={half_life}, now={now}; give a positive half-life and a time after all votes")
    # Relative to the newest vote: far in the past every weight would vanish.
    weight_N = 0.5 ** ((age_N - age_N.min()) / half_life)
    return weight_N / weight_N.mean()
