"""Several reward models as one: values by hand, and what cannot be combined."""

import pytest

from penstock.core.errors import RewardError
from penstock.rewards.model import combined

SCORES = [[1.0, 2.0], [3.0, 2.0]]  # two models, two samples


@pytest.mark.parametrize(
    ("combine", "penalty", "scores"),
    [
        ("mean", 1.0, [2.0, 2.0]),
        ("minimum", 1.0, [1.0, 2.0]),
        ("mean_minus_std", 1.0, [1.0, 2.0]),
        ("mean_minus_std", 2.0, [0.0, 2.0]),
        ("mean_minus_std", 0.0, [2.0, 2.0]),
    ],
)
def test_an_ensemble_by_hand(combine, penalty, scores):
    assert combined(SCORES, combine, penalty) == pytest.approx(scores)


@pytest.mark.parametrize("combine", ["mean", "minimum"])
def test_one_model_alone_is_itself(combine):
    assert combined([[1.0, -2.0]], combine) == [1.0, -2.0]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((SCORES, "median"), "unknown; use mean, minimum, mean_minus_std"),
        (([[1.0]], "mean_minus_std"), "cannot disagree"),
        ((SCORES, "mean_minus_std", -1.0), "reward disagreement"),
    ],
)
def test_what_cannot_be_combined_is_refused(given, message):
    with pytest.raises(RewardError, match=message):
        combined(*given)
