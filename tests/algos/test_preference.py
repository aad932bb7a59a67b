"""Pair and label losses against hand-computed values."""

import math

import pytest
import torch
from algo_examples import tensor
from torch.autograd import gradcheck

from penstock.algos.preference import accuracy, binary_label_loss, bradley_terry_loss, pairs
from penstock.core.errors import TrainingError

LN3 = math.log(3)  # sigmoid(ln 3) = 3/4, sigmoid(-ln 3) = 1/4


@pytest.mark.parametrize(
    ("chosen", "rejected", "options", "loss"),
    [
        (0.0, 0.0, {}, math.log(2)),
        (LN3, 0.0, {}, math.log(4 / 3)),
        (0.0, LN3, {}, math.log(4)),
        (-1e4, 1e4, {}, 2e4),  # a huge error stays finite
        (LN3 + 1, 0.0, {"margin": 1.0}, math.log(4 / 3)),
        (1.0, 1.0, {"centring": 0.1}, math.log(2) + 0.4),  # 0.1 * (1 + 1)²
        (LN3, 0.0, {"probability": tensor(0.75)}, 0.75 * math.log(4 / 3) + 0.25 * math.log(4)),
        (LN3, 0.0, {"probability": tensor(0.0)}, math.log(4)),  # the other one is certainly better
        (0.0, 0.0, {"probability": tensor(0.3)}, math.log(2)),
    ],
)
def test_bradley_terry_by_hand(chosen, rejected, options, loss):
    assert bradley_terry_loss(tensor(chosen), tensor(rejected), denominator=1, **options).item() == pytest.approx(loss)


def test_a_margin_may_differ_by_pair():
    loss = bradley_terry_loss(tensor(1.0, 2.0), tensor(0.0, 0.0), denominator=2, margin=tensor(1.0, 2.0))
    assert loss.item() == pytest.approx(math.log(2))


@pytest.mark.parametrize(
    ("score", "label", "loss"), [(LN3, 1.0, math.log(4 / 3)), (LN3, 0.0, math.log(4)), (0.0, 0.5, math.log(2))]
)
def test_the_label_loss_by_hand(score, label, loss):
    assert binary_label_loss(tensor(score), tensor(label), denominator=1).item() == pytest.approx(loss)


def test_accuracy_counts_a_tie_as_one_half():
    assert accuracy(tensor(2.0, 1.0, 0.0) - tensor(1.0, 1.0, 1.0), denominator=3).item() == pytest.approx(0.5)


def test_gradients_match_finite_differences():
    chosen, rejected = tensor(0.3, -1.0, 2.0).requires_grad_(), tensor(0.1, 1.0, -2.0).requires_grad_()
    assert gradcheck(lambda c, r: bradley_terry_loss(c, r, denominator=3, margin=0.2, centring=0.1), (chosen, rejected))
    assert gradcheck(lambda c: binary_label_loss(c, tensor(1.0, 0.0, 1.0), denominator=3), (chosen,))


def test_pairs_are_found_in_any_row_order():
    chosen, rejected = pairs(tensor(10, 21, 11, 20), tensor(1, 0, 0, 1), torch.tensor([0, 1, 0, 1]))
    assert (chosen.tolist(), rejected.tolist()) == ([10, 20], [11, 21])


def test_a_pair_torn_apart_is_refused():
    with pytest.raises(TrainingError, match="are no pairs"):
        pairs(tensor(1.0), tensor(1.0), torch.tensor([0]))


@pytest.mark.parametrize("function", [bradley_terry_loss, binary_label_loss])
def test_shapes_that_do_not_match_and_empty_batches_are_refused(function):
    with pytest.raises(TrainingError, match="do not go together"):
        function(tensor(1.0), tensor(1.0, 2.0), denominator=1)
    with pytest.raises(TrainingError, match="nothing to train on"):
        function(tensor(1.0), tensor(1.0), denominator=0)


def test_a_soft_label_is_met_where_the_model_believes_it():
    chosen = tensor(math.log(3)).requires_grad_()
    bradley_terry_loss(chosen, tensor(0.0), denominator=1, probability=tensor(0.75)).backward()
    assert chosen.grad.item() == pytest.approx(0.0, abs=1e-12)


def test_a_soft_label_of_one_half_does_not_care_which_is_called_chosen():
    a, b = tensor(1.7), tensor(-0.3)
    first = bradley_terry_loss(a, b, denominator=1, probability=0.5)
    assert first.item() == pytest.approx(bradley_terry_loss(b, a, denominator=1, probability=0.5).item())
