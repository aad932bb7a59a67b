"""Who is right when people disagree: each annotator's confusion and each unit's true label, estimated together by EM.

Shapes: ``A`` annotators, ``U`` units, ``K`` labels; ``confusion_AKK[a, true, said]``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from penstock.feedback.errors import FeedbackError

Floats = NDArray[np.float64]

IMAGINED, USUAL = 2.0, 0.7
"""Before any judgement of a known unit an annotator counts as right in this share of so many."""
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
    label_AU: ArrayLike,
    labels: int,
    *,
    known_U: ArrayLike | None = None,
    silent_A: ArrayLike | None = None,
    smoothing: float = 0.5,
    alike: float = 0.0,
    most: int = 200,
    tolerance: float = 1e-6,
) -> DawidSkene:
    """Estimate by EM from labels 0 … K-1, -1 where an annotator did not judge a unit.

    It starts from the majority, each annotator counting by how often they are right on the units whose label is known: a
    majority that errs together is not believed against those.

    Args:
        label_AU: integers ``[A, U]``.
        labels: K, at least 2.
        known_U: the true labels that are known (gold), -1 for the others; none where None. They stay as they are.
        silent_A: annotators who are measured but decide nothing about units; nobody where None.
        smoothing: imagined judgements of each kind for each annotator (a Dirichlet prior), which keeps somebody with three
            judgements from being certain.
        alike: above 0 every annotator errs alike on all labels, which are equally likely, and has so many imagined judgements,
            0.7 of them right (instead of ``smoothing``): where labels are arbitrary, as the order of two texts is, two error
            rates would be noise.
        most: iterations at most.
        tolerance: largest change of a posterior at which it stops.

    SOURCE: Dawid & Skene 1979, "Maximum likelihood estimation of observer error-rates using the EM algorithm".

    Raises:
        FeedbackError: labels outside their range, or a unit that nobody judged.
    """
    table_AU = np.asarray(label_AU)
    truth_U = np.full(table_AU.shape[-1], -1) if known_U is None else np.asarray(known_U)
    _check(table_AU, truth_U, labels)
    heard_A = np.ones(len(table_AU)) if silent_A is None else 1.0 - np.asarray(silent_A, np.float64)
    said = _Said.of(table_AU, labels)
    if not (said.per_unit(np.ones(len(said.unit_J))) > 0).all():
        raise FeedbackError("a unit without any judgement has no estimate; leave it out")
    known, certain_UK = truth_U >= 0, np.eye(labels)[truth_U[truth_U >= 0]]
    posterior_UK = _majority(said, heard_A * _rightness(table_AU, truth_U))
    posterior_UK[known] = certain_UK
    confusion_AKK, prior_K = _maximise(said, posterior_UK, smoothing, alike)
    for _ in range(most):
        before_UK = posterior_UK
        posterior_UK = _expect(said, confusion_AKK, prior_K, heard_A)
        posterior_UK[known] = certain_UK
        confusion_AKK, prior_K = _maximise(said, posterior_UK, smoothing, alike)
        if np.abs(posterior_UK - before_UK).max() < tolerance:
            break
    accuracy_A = np.diagonal(confusion_AKK, axis1=1, axis2=2).mean(1)
    return DawidSkene(posterior_UK, confusion_AKK, prior_K, accuracy_A, vote_weights(accuracy_A, labels))


def _check(table_AU: NDArray[np.int64], truth_U: NDArray[np.int64], labels: int) -> None:
    shaped = table_AU.ndim == 2 and table_AU.size and truth_U.shape == table_AU.shape[1:]
    if not shaped or labels < 2 or min(table_AU.min(), truth_U.min()) < -1 or max(table_AU.max(), truth_U.max()) >= labels:
        raise FeedbackError(
            f"give integers [annotators, units] from 0 to {labels - 1}, -1 for missing, and labels of 2 or more"
        )


def _majority(said: _Said, weight_A: Floats) -> Floats:
    """Each label's share of the votes on each unit, ``[U, K]``; even where nobody has a weight."""
    weight_J, labels = weight_A[said.annotator_J], said.shape[2]
    vote_UK = np.stack([said.per_unit(weight_J * (said.label_J == label)) for label in range(labels)], 1)
    total_U1 = vote_UK.sum(1, keepdims=True)
    return np.divide(vote_UK, total_U1, out=np.full_like(vote_UK, 1 / labels), where=total_U1 > 0)


def _rightness(table_AU: NDArray[np.int64], truth_U: NDArray[np.int64]) -> Floats:
    """How much more often than not each annotator is right on known units, ``[A]``, at least nearly 0."""
    judged_AU = (table_AU >= 0) & (truth_U >= 0)
    right_A = (judged_AU & (table_AU == truth_U)).sum(1)
    share_A = (right_A + IMAGINED * USUAL) / (judged_AU.sum(1) + IMAGINED)
    return np.maximum(2 * share_A - 1, 1e-6)


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


def _maximise(said: _Said, posterior_UK: Floats, smoothing: float, alike: float) -> tuple[Floats, Floats]:
    counted_AKK = np.stack([said.per_label(posterior_U[said.unit_J]) for posterior_U in posterior_UK.T], 1)
    if alike:
        labels = posterior_UK.shape[1]
        right_A = np.diagonal(counted_AKK, axis1=1, axis2=2).sum(1) + alike * USUAL
        accuracy_A11 = np.clip(right_A / (counted_AKK.sum((1, 2)) + alike), 1 - CEILING, CEILING)[:, None, None]
        even_AKK = (1 - accuracy_A11) / (labels - 1)
        return even_AKK + (accuracy_A11 - even_AKK) * np.eye(labels), np.full(labels, 1 / labels)
    counted_AKK = counted_AKK + smoothing
    total_AK1 = counted_AKK.sum(2, keepdims=True)
    even = np.full_like(counted_AKK, 1 / counted_AKK.shape[2])
    confusion_AKK = np.divide(counted_AKK, total_AK1, out=even, where=total_AK1 > 0)
    return confusion_AKK, posterior_UK.mean(0)


def _expect(said: _Said, confusion_AKK: Floats, prior_K: Floats, heard_A: Floats) -> Floats:
    with np.errstate(divide="ignore"):
        log_AKK, log_K = np.maximum(np.log(confusion_AKK), -700.0), np.maximum(np.log(prior_K), -700.0)
    log_JK = heard_A[said.annotator_J, None] * log_AKK[said.annotator_J, :, said.label_J]
    score_UK = log_K + np.stack([said.per_unit(log_J) for log_J in log_JK.T], 1)
    score_UK -= score_UK.max(1, keepdims=True)
    likely_UK = np.exp(score_UK)
    return likely_UK / likely_UK.sum(1, keepdims=True)
