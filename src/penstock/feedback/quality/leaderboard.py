"""A rating of each model from who won against whom: Bradley-Terry, with bootstrap intervals. Pure functions.

Shapes: ``D`` duels, ``M`` models, ``S`` bootstrap samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.feedback.errors import FeedbackError

Floats = NDArray[np.float64]

POINTS = 400 / np.log(10)
"""Points of the usual scale for one unit of log-odds: 400 points are odds of 10 to 1."""


class Duel(NamedTuple):
    """One vote on responses of two models."""

    first: str
    second: str
    score: float
    """1: the first won, 0: the second, one half: a tie."""
    prompt: str
    """Votes on one prompt are resampled together: they are not independent."""


@dataclass(frozen=True)
class Rated:
    """A model's place."""

    model: str
    rating: float
    """Points above the average model; 400 more are odds of 10 to 1."""
    interval: tuple[float, float]
    """95%, by bootstrap over prompts."""
    wins: float
    """Votes won, ties one half."""
    votes: int


def leaderboard(duels: Sequence[Duel], *, prior: float = 0.5, samples: int = 500, seed: int = 0) -> list[Rated]:
    """The models, the best first. A pure function of the duels and the seed.

    Args:
        duels: votes; those of a model with itself are left out.
        prior: imagined wins, and as many losses, of each model against an average one, so that who has won everything is not
            infinitely good. They are drawn anew in every sample, so that nobody's interval is a point.
        samples: bootstrap draws.
        seed: of the draws.

    SOURCE: Bradley & Terry 1952, "Rank analysis of incomplete block designs"; by Newton's method.

    Raises:
        FeedbackError: fewer than two models, or no samples.
    """
    duels = [duel for duel in duels if duel.first != duel.second]
    models = sorted({name for duel in duels for name in (duel.first, duel.second)})
    if len(models) < 2 or samples < 1 or prior < 0:
        raise FeedbackError(f"{len(models)} models with votes against each other; two are needed, and samples of 1 or more")
    index = {name: place for place, name in enumerate(models)}
    first_D, second_D = np.array([(index[duel.first], index[duel.second]) for duel in duels]).T
    score_D = np.array([duel.score for duel in duels], np.float64)
    prompt_D = np.unique([duel.prompt for duel in duels], return_inverse=True)[1]
    cell_D, back_D, size = first_D * len(models) + second_D, second_D * len(models) + first_D, len(models) ** 2

    def wins(times_D: Floats) -> Floats:
        won = np.bincount(cell_D, times_D * score_D, size) + np.bincount(back_D, times_D * (1 - score_D), size)
        return np.asarray(won, np.float64).reshape(len(models), len(models))

    generator, prompts = np.random.Generator(np.random.Philox(seed)), int(prompt_D.max()) + 1
    resampled = (np.bincount(generator.integers(0, prompts, prompts), minlength=prompts)[prompt_D] for _ in range(samples))
    won_MM = wins(np.ones(len(duels)))
    won_SMM = np.stack([won_MM, *(wins(times_D.astype(np.float64)) for times_D in resampled)])
    prior_2SM = prior * np.concatenate(
        [np.ones((2, 1, len(models))), generator.exponential(size=(2, samples, len(models)))], axis=1
    )
    rating_SM = strengths(won_SMM, *prior_2SM) * POINTS
    low_M, high_M = np.quantile(rating_SM[1:], [0.025, 0.975], axis=0)
    votes_M = (won_MM + won_MM.T).sum(1)
    found = [
        Rated(name, float(rating_SM[0, m]), (float(low_M[m]), float(high_M[m])), float(won_MM[m].sum()), round(votes_M[m]))
        for m, name in enumerate(models)
    ]
    return sorted(found, key=lambda one: (-one.rating, one.model))


def strengths(won_SMM: Floats, more_SM: Floats, less_SM: Floats) -> Floats:
    """Log-strengths ``[S, M]``, of mean 0, that make the wins ``won_SMM[s, winner, loser]`` likeliest, with ``more_SM`` wins
    and ``less_SM`` losses against an average model."""
    met_SMM, even_MM = won_SMM + won_SMM.swapaxes(1, 2), np.eye(won_SMM.shape[1])
    strength_SM = np.zeros(won_SMM.shape[:2])
    for _ in range(100):
        chance_SMM = 1 / (1 + np.exp(strength_SM[:, None, :] - strength_SM[:, :, None]))
        alone_SM = 1 / (1 + np.exp(-strength_SM))
        slope_SM = won_SMM.sum(2) - (met_SMM * chance_SMM).sum(2) + more_SM - (more_SM + less_SM) * alone_SM
        curve_SMM = met_SMM * chance_SMM * (1 - chance_SMM)
        prior_SM = (more_SM + less_SM) * alone_SM * (1 - alone_SM)
        own_SM = curve_SMM.sum(2) + prior_SM + 1e-9  # the mean is free where there is no prior
        step_SM = np.linalg.solve(own_SM[:, :, None] * even_MM - curve_SMM, slope_SM[:, :, None])[:, :, 0]
        strength_SM = strength_SM + np.clip(step_SM, -2, 2)
        if np.abs(step_SM).max() < 1e-9:
            break
    return strength_SM - strength_SM.mean(1, keepdims=True)
