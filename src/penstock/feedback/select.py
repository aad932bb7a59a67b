"""What to ask people about: a pure function of reward models' scores and a seed.

Some at random, always at least one in five, since drift and bias can be estimated from nothing else. The rest where
answers should teach most: where an ensemble of reward models disagrees, where the two responses nearly tie, or where the
predicted gap is large, so that a wrong model is found out. Which of these pays is an open question; results differ by study.

Shapes: ``E`` members of the ensemble, ``U`` candidate pairs, 2 responses each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from penstock.feedback.errors import FeedbackError
from penstock.feedback.records import Task

LEAST_RANDOM = 0.2
BY_SCORES = ("disagreement", "near_tie", "large_gap")
"""Strategies that go by the reward models' scores."""


@dataclass(frozen=True)
class Mix:
    """Shares of what is asked, by strategy; they add up to 1."""

    shares: Mapping[str, float] = field(default_factory=lambda: dict.fromkeys(("random", *BY_SCORES), 0.25))

    def __post_init__(self) -> None:
        unknown = set(self.shares) - {"random", *BY_SCORES}
        if unknown or min(self.shares.values(), default=-1.0) < 0 or abs(sum(self.shares.values()) - 1) > 1e-9:
            raise FeedbackError(f"shares={dict(self.shares)}; give random, {', '.join(BY_SCORES)} shares that add up to 1")
        if self.shares.get("random", 0.0) < LEAST_RANDOM:
            raise FeedbackError(
                f"random={self.shares.get('random', 0.0):g}; at least {LEAST_RANDOM:g} must be asked at random, "
                "or drift and bias cannot be estimated"
            )


def win_probability(score_EU2: ArrayLike) -> NDArray[np.float64]:
    """Each member's chance ``[E, U]`` that the first response is better: ``σ(score difference)`` (Bradley-Terry)."""
    scores = np.asarray(score_EU2, np.float64)
    if scores.ndim != 3 or scores.shape[2] != 2 or not np.isfinite(scores).all():
        raise FeedbackError(f"scores of shape {scores.shape}; give finite ones [members, pairs, 2]")
    return 0.5 * (1 + np.tanh((scores[:, :, 0] - scores[:, :, 1]) / 2))


def urges(score_EU2: ArrayLike) -> dict[str, NDArray[np.float64]]:
    """How much each strategy wants each pair, ``[U]``.

    ``disagreement``: the standard deviation of the members' chances; 0 where they are of one mind. ``near_tie``: how close the
    mean chance is to one half; 0 is closest. ``large_gap``: the size of the mean score difference.
    """
    chance_EU, scores = win_probability(score_EU2), np.asarray(score_EU2, np.float64)
    gap_U = (scores[:, :, 0] - scores[:, :, 1]).mean(0)
    return {"disagreement": chance_EU.std(0), "near_tie": -np.abs(chance_EU.mean(0) - 0.5), "large_gap": np.abs(gap_U)}


def select(score_EU2: ArrayLike, wanted: int, mix: Mix | None = None, seed: int = 0) -> list[tuple[int, str]]:
    """``wanted`` different pairs as (index, strategy). The random ones are chosen first, evenly from all pairs.

    Where strategies want the same pair, the next best of the later one is taken. Equal urges fall in an order given by the
    seed.

    Raises:
        FeedbackError: more wanted than there are, wrong scores, or disagreement asked of a single reward model.
    """
    mix, scores = mix or Mix(), np.asarray(score_EU2, np.float64)
    pairs = win_probability(scores).shape[1]
    if not 0 <= wanted <= pairs:
        raise FeedbackError(f"{wanted} of {pairs} pairs; draw more candidates, or ask for fewer")
    if mix.shares.get("disagreement", 0) and len(scores) < 2:
        raise FeedbackError("disagreement needs at least 2 reward models; train an ensemble, or leave the strategy out")
    order_U = np.random.Generator(np.random.Philox(seed)).permutation(pairs)
    count = portions(wanted, mix.shares)
    chosen = {int(index): "random" for index in order_U[: count["random"]]}
    for strategy, urge_U in urges(scores).items():
        ranked = sorted(order_U.tolist(), key=lambda index: -urge_U[index])
        fresh = [index for index in ranked if index not in chosen][: count.get(strategy, 0)]
        chosen |= dict.fromkeys(fresh, strategy)
    return list(chosen.items())


def portions(wanted: int, shares: Mapping[str, float]) -> dict[str, int]:
    """Whole numbers in these shares that add up to ``wanted``; the random one is rounded up, the others by largest rest."""
    exact = {name: wanted * share for name, share in shares.items()}
    count = {name: int(np.ceil(value - 1e-9)) if name == "random" else int(value + 1e-9) for name, value in exact.items()}
    by_rest = sorted((name for name in exact if name != "random"), key=lambda name: count[name] - exact[name])
    for name in by_rest[: wanted - sum(count.values())]:
        count[name] += 1
    while sum(count.values()) > wanted:  # the rounding of the random share took one from the others
        count[max((name for name in count if name != "random"), key=lambda name: count[name] - exact[name])] -= 1
    return count


def anchors(tasks: Sequence[Task], round: str) -> list[Task]:
    """The same tasks to be asked anew in a round such as ``2026-W47``: what people say about them shows drift."""
    return [replace(task, purpose="anchor", strategy="anchor", gold=None, reserved="", round=round) for task in tasks]
