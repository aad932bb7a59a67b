"""REBEL: pairs of samples, and the regression of reward differences on log-ratio differences."""

import pytest
import torch
from algo_examples import count, group, lay_out, sample

from penstock.algos import REBEL


def label(*groups, **fields):
    return REBEL(**fields).label(groups, {}, {})


@pytest.mark.parametrize(
    ("ratios", "rewards", "eta", "expected"),
    [
        # ((h1 - h2) / eta - (r1 - r2))²
        ((0.0, 0.0), (1.0, 0.0), 1.0, 1.0),
        ((1.0, 0.0), (1.0, 0.0), 1.0, 0.0),
        ((1.0, -1.0), (1.0, 0.0), 1.0, 1.0),
        ((1.0, -1.0), (1.0, 0.0), 2.0, 0.0),
        ((0.5, 0.0), (0.3, 0.3), 1.0, 0.25),
    ],
)
def test_the_loss_is_the_squared_error_by_hand(ratios, rewards, eta, expected):
    units = label(group(sample([2], rewards[0]), sample([3], rewards[1])), eta=eta)
    batch, fields = lay_out(units)
    old_A = fields["old_logp"].double()
    outputs = {"logp": old_A + torch.tensor(ratios, dtype=torch.float64)}
    loss, _ = REBEL(eta=eta).loss()(outputs, fields, batch, count(units))
    assert loss.item() == pytest.approx(expected, abs=1e-6)


def test_samples_are_paired_as_they_come_and_an_odd_one_is_left_out():
    units = label(group(*(sample([token], 0.0) for token in (2, 3, 4, 5, 6))))
    assert [[int(row.tokens_T[-1]) for row in unit] for unit in units] == [[2, 3], [4, 5]]


def test_a_failed_sample_is_in_no_pair():
    (unit,) = label(group(sample([2], 1.0), sample([3], 0.0, error="boom"), sample([4], 0.5)))
    assert [int(row.tokens_T[-1]) for row in unit] == [2, 4]


def test_the_first_gradient_raises_the_better_of_the_two():
    units = label(group(sample([2], 1.0), sample([3], 0.0)))
    batch, fields = lay_out(units)
    logp_A = fields["old_logp"].double().clone().requires_grad_()
    loss, _ = REBEL().loss()({"logp": logp_A}, fields, batch, count(units))
    loss.backward()
    assert logp_A.grad.tolist() == pytest.approx([-2.0, 2.0])
