"""Who is right when people disagree: each annotator's confusion and each unit's true label, estimated together by EM.

Shapes: ``A`` annotators, ``U`` units, ``K`` labels; ``confusion_AKK[a, true, said]``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from penstock.feedback.errors import FeedbackError

Floats = NDArray[np.float64]

CEILING = 0.99
"""Accuracy that no annotator is believed to exceed, so that no weight is infinite."""


@dataclass(frozen=True)
class DawidSkene:
    """What the estimate found."""

    posterior_UK: Floats
    """Chance of each label to be the true one."""
    confusion_AKK: Floats
    prior_K: Floats
    accuracy_A: Floats
    """How often each annotator says the true label, every label counting alike."""
    weight_A: Floats
    """What each annotator's vote is worth, see :func:`vote_weights`."""


def vote_weights(accuracy_A: ArrayLike, labels: int) -> Floats:
    """``log(p (K - 1) / (1 - p))``: the log-odds by which a vote of accuracy p moves a Bayesian; 0 at or below chance.

    The best weights of a weighted majority (Nitzan & Paroush 1982). An adversary's weight would be negative; it is 0, since
    nothing is learnt from somebody who may change their mind about being wrong.
    """
    accuracy = np.clip(np.asarray(accuracy_A, np.float64), 1e-6, CEILING)
    return np.maximum(0.0, np.log(accuracy * (labels - 1) / (1 - accuracy)))


def dawid_skene(
    label_AU: ArrayLike, labels: int, *, smoothing: float = 0.5, most: int = 200, tolerance: float = 1e-6
) -> DawidSkene:
    """Estimate by EM from labels 0 … K-1, -1 where an annotator did not judge a unit; starts from the majority.

    Args:
        label_AU: integers ``[A, U]``.
        labels: K, at least 2.
        smoothing: imagined judgements of each kind for each annotator (a Dirichlet prior), which keeps somebody with three
            judgements from being certain.
        most: iterations at most.
        tolerance: largest change of a posterior at which it stops.

    SOURCE: Dawid & Skene 1979, "Maximum likelihood estimation of observer error-rates using the EM algorithm".

    Raises:
        FeedbackError: labels outside their range, or a unit that nobody judged.
    """
    table_AU = np.asarray(label_AU)
    if (
        table_AU.ndim != 2
        or not table_AU.size
        or labels < 2
        or table_AU.min(initial=-1) < -1
        or table_AU.max(initial=0) >= labels
    ):
        raise FeedbackError(
            f"give integers [annotators, units] from 0 to {labels - 1}, -1 for missing, and labels of 2 or more"
        )
    said = _Said.of(table_AU, labels)
    vote_UK = np.stack([said.per_unit(said.label_J == label) for label in range(labels)], 1)
    if not (vote_UK.sum(1) > 0).all():
        raise FeedbackError("a unit without any judgement has no estimate; leave it out")
    posterior_UK = vote_UK / vote_UK.sum(1, keepdims=True)
    confusion_AKK, prior_K = _maximise(said, posterior_UK, smoothing)
    for _ in range(most):
        before_UK = posterior_UK
        posterior_UK = _expect(said, confusion_AKK, prior_K)
        confusion_AKK, prior_K = _maximise(said, posterior_UK, smoothing)
        if np.abs(posterior_UK - before_UK).max() < tolerance:
            break
    accuracy_A = np.diagonal(confusion_AKK, axis1=1, axis2=2).mean(1)
    return DawidSkene(posterior_UK, confusion_AKK, prior_K, accuracy_A, vote_weights(accuracy_A, labels))


@dataclass(frozen=True)
class _Said:
    """The judgements, one after the other: a table of many annotators is nearly empty, and each step costs what was said."""

    annotator_J: NDArray[np.int64]
    unit_J: NDArray[np.int64]
    label_J: NDArray[np.int64]
    shape: tuple[int, int, int]
    """A, U, K."""

    @classmethod
    def of(cls, table_AU: NDArray[np.int64], labels: int) -> _Said:
        annotator_J, unit_J = np.nonzero(table_AU >= 0)
        label_J = table_AU[annotator_J, unit_J].astype(np.int64)
        return cls(annotator_J, unit_J, label_J, (*table_AU.shape, labels))

    def per_unit(self, value_J: ArrayLike) -> Floats:
        """The sum of a value over the judgements of each unit, ``[U]``."""
        return np.bincount(self.unit_J, np.asarray(value_J, np.float64), self.shape[1]).astype(np.float64, copy=False)

    def per_label(self, value_J: Floats) -> Floats:
        """The sum of a value over what each annotator said, ``[A, K]``."""
        annotators, _, labels = self.shape
        summed = np.bincount(self.annotator_J * labels + self.label_J, value_J, annotators * labels)
        return summed.astype(np.float64, copy=False).reshape(annotators, labels)


def _maximise(said: _Said, posterior_UK: Floats, smoothing: float) -> tuple[Floats, Floats]:
    counted_AKK = np.stack([said.per_label(posterior_U[said.unit_J]) for posterior_U in posterior_UK.T], 1) + smoothing
    total_AK1 = counted_AKK.sum(2, keepdims=True)
    even = np.full_like(counted_AKK, 1 / counted_AKK.shape[2])
    confusion_AKK = np.divide(counted_AKK, total_AK1, out=even, where=total_AK1 > 0)
    return confusion_AKK, posterior_UK.mean(0)


def _expect(said: _Said, confusion_AKK: Floats, prior_K: Floats) -> Floats:
    with np.errstate(divide="ignore"):
        log_AKK, log_K = np.maximum(np.log(confusion_AKK), -700.0), np.maximum(np.log(prior_K), -700.0)
    log_JK = log_AKK[said.annotator_J, :, said.label_J]
    score_UK = log_K + np.stack([said.per_unit(log_J) for log_J in log_JK.T], 1)
    score_UK -= score_UK.max(1, keepdims=True)
    likely_UK = np.exp(score_UK)
    return likely_UK / likely_UK.sum(1, keepdims=True)
