"""KTO: labels, computed class weights, a baseline that no micro-batch can change, the loss, assessment."""

import math

import numpy as np
import pytest
from algo_examples import Letters, Table, count, evaluated
from hypothesis import given
from hypothesis import strategies as st

from penstock.algos import KTO
from penstock.algos.kto import class_weights, mismatched
from penstock.core.errors import DataError, TrainingError
from penstock.core.types import Row

TOKENIZER = Letters()
PAIR = {"prompt": "ab", "chosen": "cd", "rejected": "e"}


def example(prompt, completion, label):
    return KTO().rows({"prompt": prompt, "completion": completion, "label": label}, TOKENIZER)


def filled(units, reference=-1.0, baseline=0.0):
    def row(row):
        more = {"reference_logp": np.full(int(row.action_T.sum()), reference), "baseline": baseline}
        return Row(row.columns, row.action_T, {**row.fields, **more})

    return [tuple(map(row, unit)) for unit in units]


@pytest.mark.parametrize(("label", "desirable"), [(True, 1.0), (False, 0.0), (1, 1.0), (np.int64(0), 0.0), (1.0, 1.0)])
def test_a_labelled_completion_is_one_row(label, desirable):
    (row,) = example("ab", "c", label)
    assert row.tokens_T.tolist() == [1, 2, 3, 6]
    assert row.action_T.tolist() == [False, False, True, True]
    assert row.fields == {"desirable": desirable}


@pytest.mark.parametrize("label", [None, 0.5, "good", 2])
def test_a_label_that_is_neither_good_nor_bad_is_refused(label):
    with pytest.raises(DataError, match=r"true \(good\) or false \(bad\)"):
        example("a", "b", label)


def test_a_pair_is_one_good_and_one_bad_row():
    good, bad = KTO(data="pairs").rows(PAIR, TOKENIZER)
    assert (good.tokens_T.tolist(), good.fields) == ([1, 2, 3, 4, 6], {"desirable": 1.0})
    assert (bad.tokens_T.tolist(), bad.fields) == ([1, 2, 5, 6], {"desirable": 0.0})


@pytest.mark.parametrize(
    ("good", "bad", "weights"),
    [
        (10, 10, (1.0, 1.0)),
        (4, 3, (1.0, 1.0)),  # 4 : 3 is the end of the range
        (10, 30, (3.0, 1.0)),
        (40, 10, (1.0, 3.0)),  # 40 : 30
    ],
)
def test_class_weights_by_hand(good, bad, weights):
    assert class_weights(good, bad) == pytest.approx(weights)


@given(good=st.integers(1, 10_000), bad=st.integers(1, 10_000))
def test_weighted_counts_lie_in_the_papers_range(good, bad):
    for_good, for_bad = class_weights(good, bad)
    assert 1 - 1e-9 <= for_good * good / (for_bad * bad) <= 4 / 3 + 1e-9
    assert min(for_good, for_bad) == 1.0


def test_weights_are_computed_from_all_data_unless_they_are_given():
    units = [example("a", "b", label) for label in (True, False, False)]
    assert KTO().fitted(iter(units)).weights == (2.0, 1.0)
    assert KTO(weights=(1.0, 5.0)).fitted(iter(units)).weights == (1.0, 5.0)


def test_weights_of_one_class_alone_are_undefined():
    with pytest.raises(DataError, match="2 good and 0 bad"):
        KTO().fitted([example("a", "b", True)] * 2)


def test_a_loss_before_the_weights_are_known_is_refused():
    with pytest.raises(TrainingError, match="fitted"):
        KTO().compute_loss({}, {}, None, None)


def test_mismatched_rows_join_each_prompt_with_the_next_units_completion():
    units = [example("ab", "c", True), example("d", "eee", False)]
    first, second = (unit[0] for unit in mismatched(units))
    assert first.tokens_T.tolist() == [1, 2, 5, 5, 5]  # cut: no row grows beyond the longest of the batch
    assert second.tokens_T.tolist() == [4, 3, 6]
    assert first.action_T.tolist() == [False, False, True, True, True]


def test_one_unit_has_nothing_to_be_mismatched_with():
    with pytest.raises(TrainingError, match="at least two units"):
        mismatched([example("a", "b", True)])


@pytest.mark.parametrize(("gap", "baseline"), [(0.25, 0.25 * 2.5), (-0.25, 0.0)])
def test_the_baseline_is_the_mean_log_ratio_of_mismatched_rows_but_never_negative(gap, baseline):
    units = [example("a", "b", True), example("c", "de", False)]  # mismatched rows of 3 and 2 actions

    def scorer(logp):
        return lambda units: [np.full(int(row.action_T.sum()), logp) for unit in units for row in unit]

    found = KTO().with_baseline(units, scorer(-1.0 + gap), scorer(-1.0))
    assert [row.fields["baseline"] for unit in found for row in unit] == pytest.approx([baseline] * 2)


def test_the_loss_by_hand():
    units = filled([example("a", "b", True), example("a", "c", False)], -1.0, baseline=0.5)
    # log-ratios 1.5 and -0.5
    loss, metrics = evaluated(KTO(beta=0.8, weights=(2.0, 1.0)), units, logp=[-0.5, 0.0, -1.5, -1.0])
    good, bad = 1 / (1 + math.exp(0.8 * 1.0)), 1 / (1 + math.exp(0.8 * 1.0))
    assert loss.item() == pytest.approx((2 * good + bad) / 2)
    assert metrics["reward/towards_label"].item() == pytest.approx(0.8 * (1.5 + 0.5) / 2)
    assert metrics["kl/mismatched"].item() == pytest.approx(0.5)


def test_the_end_token_gets_a_gradient_and_the_prompt_none():
    model, algorithm = Table(), KTO(weights=(1.0, 1.0))
    units = filled([example("ab", "c", True)])
    model.accumulate(algorithm.loss(), [units], count(units))
    assert model.logits.grad[3, TOKENIZER.end] < 0
    assert model.logits.grad[1].abs().max() == 0


def test_assessment_counts_how_often_good_beats_bad():
    units = filled([example("a", "b", label) for label in (True, True, False)], -1.0)
    logp = [np.array([0.0, -1.0]), np.array([-2.0, -1.0]), np.array([-2.0, -1.0])]  # log-ratios 1, -1, -1
    found = KTO(beta=0.5).assess(units, {"logp": logp})
    assert found == pytest.approx({"label/auc": 0.75, "reward/good": 0.0, "reward/bad": -0.5})


def test_assessment_of_one_class_is_refused():
    units = filled([example("a", "b", True)])
    with pytest.raises(TrainingError, match="1 good and 0 bad"):
        KTO().assess(units, {"logp": [np.zeros(2)]})
