"""Annotators' confusions and units' labels, by hand and on simulated noise."""

import math

import numpy as np
import pytest

from penstock.feedback.errors import FeedbackError
from penstock.feedback.quality.dawid_skene import dawid_skene, vote_weights


def test_unanimous_annotators_are_believed():
    found = dawid_skene([[0, 1, 1, 0], [0, 1, 1, 0], [0, 1, 1, -1]], 2, smoothing=0)
    assert found.posterior_UK[:, 0].tolist() == [1, 0, 0, 1]
    assert found.confusion_AKK.tolist() == [np.eye(2).tolist()] * 3
    assert found.prior_K.tolist() == [0.5, 0.5]


def test_one_who_always_says_the_opposite_is_found_out():
    found = dawid_skene([[0, 1, 1, 0], [0, 1, 1, 0], [1, 0, 0, 1]], 2, smoothing=0)
    assert found.posterior_UK[:, 0] == pytest.approx([1, 0, 0, 1])
    assert found.confusion_AKK[2] == pytest.approx(np.array([[0, 1], [1, 0]]))
    assert found.weight_A[2] == 0


def test_one_step_by_hand():
    # Two units, said by a: 0, 1; by b: 0, 0. Majority: (1, 0) and (½, ½), prior (¾, ¼).
    # a says 0 of true 0 in 1 of 1.5, 1 of true 1 in ½ of ½. b always says 0.
    # Unit 0: 0 has ¾ · ⅔ · 1, 1 has ¼ · 0 · 1: certain. Unit 1: 0 has ¾ · ⅓, 1 has ¼ · 1: even.
    found = dawid_skene([[0, 1], [0, 0]], 2, smoothing=0, most=1)
    assert found.posterior_UK == pytest.approx(np.array([[1, 0], [0.5, 0.5]]))


def test_accuracies_are_recovered_from_noise():
    rng, accuracy_A = np.random.default_rng(0), np.array([0.9, 0.8, 0.7, 0.6, 0.1])
    truth_U = rng.integers(0, 2, 600)
    right_AU = rng.random((5, 600)) < accuracy_A[:, None]
    said_AU = np.where(right_AU, truth_U, 1 - truth_U)
    said_AU[rng.random((5, 600)) < 0.3] = -1
    said_AU[0, (said_AU == -1).all(0)] = 0
    found = dawid_skene(said_AU, 2)
    assert found.accuracy_A == pytest.approx(accuracy_A, abs=0.07)
    majority = np.where(said_AU < 0, 0, 2 * said_AU - 1).sum(0) > 0
    assert (found.posterior_UK.argmax(1) == truth_U).mean() > (majority == truth_U).mean() + 0.05


def test_three_labels_by_symmetry():
    said_AU = [[0, 1, 2] * 5, [0, 1, 2] * 5, [1, 2, 0] * 5]
    found = dawid_skene(said_AU, 3)
    assert found.posterior_UK.argmax(1).tolist() == [0, 1, 2] * 5
    assert found.accuracy_A[2] < 0.15


def test_weights_are_log_odds_and_never_negative():
    assert vote_weights([0.5, 0.8, 0.2, 1.0], 2) == pytest.approx([0, math.log(4), 0, math.log(99)])
    assert vote_weights([1 / 3], 3) == pytest.approx([0], abs=1e-9)


def test_what_nobody_judged_is_refused():
    with pytest.raises(FeedbackError, match="without any judgement"):
        dawid_skene([[0, -1]], 2)
    with pytest.raises(FeedbackError, match="from 0 to 1"):
        dawid_skene([[0, 2]], 2)
