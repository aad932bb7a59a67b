"""Reward models from single labels: rows, loss and held-out assessment against hand-computed values."""

import math

import numpy as np
import pytest
from algo_examples import Letters, evaluated

from penstock.algos import BinaryRewardModel, BradleyTerry
from penstock.core.errors import DataError, TrainingError

TOKENIZER = Letters()
LOG3 = math.log(3)


def units(*labels):
    return [BinaryRewardModel().rows({"prompt": "", "completion": "a", "label": label}, TOKENIZER) for label in labels]


def scores(*values):
    return {"score": list(values)}


def test_a_row_is_the_whole_text_with_its_end_and_trains_no_token():
    (row,) = BinaryRewardModel().rows({"prompt": "ab", "completion": "c", "label": 1}, TOKENIZER)
    assert row.tokens_T.tolist() == [1, 2, 3, 6]
    assert not row.action_T.any()
    assert dict(row.fields) == {"label": 1.0}


@pytest.mark.parametrize("label", [0, 1, 0.25, True, np.int64(1), np.float32(0.5)])
def test_a_label_is_a_number_from_0_to_1(label):
    ((row,),) = units(label)
    assert row.fields["label"] == float(label)


@pytest.mark.parametrize("label", [None, "1", 2, -1, math.nan, [1]])
def test_what_is_no_label_is_refused_by_its_value(label):
    with pytest.raises(DataError, match="needs a label from 0"):
        units(label)


def test_a_missing_label_or_text_is_refused():
    with pytest.raises(DataError, match="got None"):
        BinaryRewardModel().rows({"prompt": "", "completion": "a"}, TOKENIZER)
    with pytest.raises(DataError, match='needs the text "completion"'):
        BinaryRewardModel().rows({"prompt": "", "label": 1}, TOKENIZER)


def test_the_loss_by_hand():
    loss, metrics = evaluated(BinaryRewardModel(), units(1, 0, 0.5), score=[LOG3, LOG3, 0.0])
    # sigmoid(ln 3) = 3/4: the first costs ln 4/3, the second ln 4, the undecided third ln 2
    assert loss.item() == pytest.approx((math.log(4 / 3) + math.log(4) + math.log(2)) / 3)
    assert metrics["label/accuracy"].item() == pytest.approx((1 + 0 + 0.5) / 3)
    assert metrics["score/mean"].item() == pytest.approx(2 * LOG3 / 3)


def test_assessment_by_hand():
    found = BinaryRewardModel().assess(units(1, 0, 1), scores(LOG3, LOG3, 0.0))
    assert found["label/accuracy"] == pytest.approx(0.5)
    assert found["label/nll"] == pytest.approx((math.log(4 / 3) + math.log(4) + math.log(2)) / 3)


def test_assessment_stays_finite_for_huge_scores():
    assert BinaryRewardModel().assess(units(0), scores(1e6))["label/nll"] == pytest.approx(1e6)


def test_scores_of_other_units_are_refused():
    with pytest.raises(TrainingError, match="score the same units first"):
        BinaryRewardModel().assess(units(1, 0), scores(1.0))
    with pytest.raises(TrainingError):
        BinaryRewardModel().assess([], scores())


def test_algorithms_from_data_say_what_they_read():
    assert (BinaryRewardModel.data, BradleyTerry.data) == ("examples", "pairs")
