"""The inputs of value learning against hand-computed values, their gradients, and what they never read."""

import math

import pytest
import torch
from algo_examples import tensor
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck

from penstock.algos.value_learning import (
    advantage_weight,
    conservative_loss,
    expectile_loss,
    next_values,
    temporal_difference_loss,
)

ONE, TWO = tensor(1.0), tensor(1.0, 1.0)


@pytest.mark.parametrize(
    ("value", "row", "following"),
    [
        ([1.0, 2.0, 3.0], [0, 0, 0], [2.0, 3.0, 0.0]),  # nothing follows the last action
        ([1.0, 2.0, 3.0, 4.0], [0, 0, 1, 1], [2.0, 0.0, 4.0, 0.0]),  # nor does the next row
        ([1.0, 2.0], [0, 1], [0.0, 0.0]),
        ([5.0], [0], [0.0]),
        ([], [], []),
    ],
)
def test_the_next_value_by_hand(value, row, following):
    assert next_values(tensor(*value), torch.tensor(row, dtype=torch.int64)).tolist() == following


@pytest.mark.parametrize(
    ("function", "found", "aim", "options", "loss"),
    [
        (temporal_difference_loss, [[1.0, 3.0]], [2.0], {}, 2.0),  # 1² + 1²
        (temporal_difference_loss, [[0.0, 0.0], [1.0, 1.0]], [3.0, 1.0], {}, 9.0),  # (2 · 9 + 0) / 2
        (expectile_loss, [0.0], [2.0], {"expectile": 0.5}, 2.0),  # half the squared error
        (expectile_loss, [0.0], [2.0], {"expectile": 0.9}, 3.6),  # 0.9 · 4: too low is dear
        (expectile_loss, [2.0], [0.0], {"expectile": 0.9}, 0.4),  # 0.1 · 4: too high is cheap
        (expectile_loss, [1.0], [1.0], {"expectile": 0.9}, 0.0),
        # Values 0 and ln 3: logsumexp is ln 4; of the taken action ln 3 it is ln(4/3), by each of two heads.
        (conservative_loss, [[math.log(3)] * 2], [[math.log(4)] * 2], {}, 2 * math.log(4 / 3)),
    ],
)
def test_a_loss_by_hand(function, found, aim, options, loss):
    made = function(tensor(*found), tensor(*aim), torch.ones(len(found)), denominator=len(found), **options)
    assert made.item() == pytest.approx(loss)


@pytest.mark.parametrize(
    ("advantage", "scale", "weight"),
    [(0.0, 1.0, 1.0), (math.log(2), 2.0, 4.0), (-math.log(2), 1.0, 0.5), (100.0, 1.0, 20.0), (5.0, 0.0, 1.0)],
)
def test_the_advantage_weight_by_hand(advantage, scale, weight):
    assert advantage_weight(tensor(advantage), scale=scale, limit=20.0).item() == pytest.approx(weight)


def test_weights_targets_and_backups_have_no_gradient():
    other = tensor(0.3).requires_grad_()
    assert not advantage_weight(other, scale=1.0, limit=20.0).requires_grad
    assert not expectile_loss(tensor(0.0), other, ONE, expectile=0.7, denominator=1).requires_grad
    assert not temporal_difference_loss(tensor([0.0, 0.0]), other, ONE, denominator=1).requires_grad


LOSSES = {
    "one step": lambda x: temporal_difference_loss(x, tensor(0.3, -0.2), TWO, denominator=2),
    "expectile": lambda x: expectile_loss(x[:, 0], tensor(0.3, -0.2), TWO, expectile=0.8, denominator=2),
    "conservative": lambda x: conservative_loss(x[:, :1], x.logsumexp(-1, keepdim=True), TWO, denominator=2),
}


@pytest.mark.parametrize("name", LOSSES)
def test_gradients(name):
    assert gradcheck(LOSSES[name], (tensor([0.5, -1.0], [1.5, 0.1]).requires_grad_(),))


@pytest.mark.parametrize("name", ["one step", "expectile", "conservative"])
def test_a_cell_of_weight_0_is_never_read(name):
    x = tensor([0.5, 1.0], [math.nan, math.nan]).requires_grad_()
    weight, aim = tensor(1.0, 0.0), tensor(0.0, math.nan)
    loss = {
        "one step": lambda: temporal_difference_loss(x, aim, weight, denominator=1),
        "expectile": lambda: expectile_loss(x[:, 0], aim, weight, expectile=0.7, denominator=1),
        "conservative": lambda: conservative_loss(x, x + 1, weight, denominator=1),
    }[name]()
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(x.grad).all()


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=8), st.floats(0.5, 0.99))
def test_a_higher_expectile_never_wants_a_lower_value(targets, expectile):
    value = torch.full((len(targets),), sum(targets) / len(targets), dtype=torch.float64, requires_grad=True)
    expectile_loss(value, tensor(*targets), torch.ones_like(value), expectile=expectile, denominator=1).backward()
    assert value.grad.sum().item() <= 1e-9
