"""How many units are truly so, from votes that err: a share with the annotators' errors taken out, and how sure it is.

Counting majorities pulls every share to one half, for errors are as likely on either side. Here each unit brings its evidence
instead, the log-odds of its votes, and the share is estimated that makes all of it likeliest. Epidemiology knows the problem as
the prevalence behind an imperfect test.

Shapes: ``U`` units, ``G`` grid points.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from penstock.feedback.errors import FeedbackError

GRID = 2000
"""Cells of the share; their width bounds the error of an end of an interval."""


@dataclass(frozen=True)
class TrueShare:
    """A share of units, as a distribution that starts even."""

    value: float
    """Its mean; one half where nothing is known."""
    low: float
    high: float
    """The share lies below ``low`` with a chance of 5%, and above ``high`` with as much."""
    of: int
    """Units whose votes lean to a side."""
    above_half: float
    """Chance that the share is above one half."""

    def __str__(self) -> str:
        return f"{self.value:.1%} [{self.low:.1%}, {self.high:.1%}] of {self.of}"


def true_share(log_odds_U: ArrayLike) -> TrueShare:
    """The share of units that are truly so, from the log-odds that each one is, before anything is known of the share.

    With ``t = tanh(log-odds / 2)`` the votes on a unit are ``1 + (2 share - 1) t`` times as likely as at a share of one half,
    and the posterior is the product of that over units, normalised. A unit whose votes cancel out has t = 0 and says nothing.

    Where annotators err as often for either side, ``above_half`` exceeds 95% in about 5% of cases at most at a true share of
    one half, whatever their accuracies are taken to be: those decide how far the share lies from one half, not on which side.
    One vote a unit and equal accuracies ``a`` put the peak at ``(share of votes - (1 - a)) / (2 a - 1)``, and votes that never
    err give the Beta distribution of their counts.

    SOURCE: Rogan & Gladen 1978, "Estimating prevalence from the results of a screening test"; as a posterior: Joseph et al.
    1995, "Bayesian estimation of disease prevalence and the parameters of diagnostic tests".

    Raises:
        FeedbackError: log-odds that are not finite.
    """
    odds_U = np.asarray(log_odds_U, np.float64).reshape(-1)
    if not np.isfinite(odds_U).all():
        raise FeedbackError("log-odds of votes must be finite; weigh no annotator as infallible (dawid_skene.CEILING)")
    lean_U = np.tanh(odds_U[odds_U != 0] / 2)
    alike_K, count_K = np.unique(lean_U, return_counts=True)  # many units have the same votes
    edge_G = np.linspace(0, 1, GRID + 1)
    middle_G = (edge_G[1:] + edge_G[:-1]) / 2
    log_G = np.zeros(GRID)
    for lean, count in zip(alike_K.tolist(), count_K.tolist(), strict=True):
        log_G += count * np.log1p((2 * middle_G - 1) * lean)
    mass_G = np.exp(log_G - log_G.max())
    mass_G /= mass_G.sum()
    below_G = np.concatenate([[0.0], np.cumsum(mass_G)])
    low, high = np.interp([0.05, 0.95], below_G, edge_G)
    half = mass_G[middle_G > 0.5].sum()
    return TrueShare(float(mass_G @ middle_G), float(low), float(high), len(lean_U), float(half))
