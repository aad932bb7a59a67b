"""Pair losses by log-probs against hand-computed values, finite differences, and each other."""

import math

import pytest
import torch
from algo_examples import tensor
from torch.autograd import gradcheck

from penstock.algos import pair_losses as losses
from penstock.algos.pair_losses import PAIR_LOSSES

LN3 = math.log(3)  # sigmoid(ln 3) = 3/4
SIG1 = 1 / (1 + math.exp(-1))

# name, chosen, rejected, beta, more, loss: with beta 0.5 a gap of 2 ln 3 is a margin of ln 3.
BY_HAND = [
    ("sigmoid", 2 * LN3, 0.0, 0.5, (), math.log(4 / 3)),
    ("sigmoid", 0.0, 2 * LN3, 0.5, (), math.log(4)),
    ("sigmoid", 7.0, 7.0, 0.5, (), math.log(2)),
    ("sigmoid", 2 * LN3, 0.0, 0.5, (0.25,), 0.75 * math.log(4 / 3) + 0.25 * math.log(4)),
    ("robust", 2 * LN3, 0.0, 0.5, (0.25,), (0.75 * math.log(4 / 3) - 0.25 * math.log(4)) / 0.5),
    ("ipo", 3.0, 1.0, 0.1, (), (2 - 5) ** 2),  # 1 / (2 * 0.1) = 5
    ("ipo", 6.0, 1.0, 0.1, (), 0.0),
    ("hinge", 3.0, 1.0, 0.1, (), 0.8),
    ("hinge", 30.0, 1.0, 0.1, (), 0.0),
    ("apo_zero", 2 * LN3, -2 * LN3, 0.5, (), 0.25 + 0.25),
    ("apo_zero", -2 * LN3, 2 * LN3, 0.5, (), 0.75 + 0.75),
    ("apo_down", 2 * LN3, 0.0, 0.5, (), 0.75 + 0.25),
    ("apo_down", -2 * LN3, 0.0, 0.5, (), 0.25 + 0.75),
    ("apo_down", -2 * LN3, -4 * LN3, 0.5, (), 0.25 + 0.25),
    ("sppo", 3.0, -1.0, 0.1, (), (3 - 5) ** 2 + (-1 + 5) ** 2),
    ("exo", 2 * LN3, 0.0, 0.5, (0.25,), 0.0),  # the policy is where the labels want it
    ("exo", 0.0, 0.0, 0.5, (0.25,), 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)),
    ("nca", 2 * LN3, -2 * LN3, 0.5, (), math.log(4 / 3) + 0.5 * math.log(4) + 0.5 * math.log(4 / 3)),
    ("discopop", 0.0, 0.0, 0.5, (), 0.5 * math.log(2) + 0.5),
    ("discopop", 0.1, 0.0, 0.5, (), (1 - SIG1) * math.log1p(math.exp(-0.05)) + SIG1 * math.exp(-0.05)),  # 0.05 / 0.05 = 1
    ("bco", 2 * LN3 + 1, 1.0, 0.5, (tensor(1.0),), math.log(4 / 3) + math.log(2)),
]


@pytest.mark.parametrize(("name", "chosen", "rejected", "beta", "more", "loss"), BY_HAND)
def test_a_pair_loss_by_hand(name, chosen, rejected, beta, more, loss):
    found = PAIR_LOSSES[name](tensor(chosen), tensor(rejected), beta, *more)
    assert found.tolist() == pytest.approx([loss])


def test_every_pair_loss_has_a_value_by_hand():
    assert {name for name, *_ in BY_HAND} == set(PAIR_LOSSES)


MORE = {"robust": (0.1,), "exo": (0.1,), "bco": (tensor(0.2, 0.2, 0.2),)}


@pytest.mark.parametrize("name", PAIR_LOSSES)
def test_gradients_match_finite_differences(name):
    chosen, rejected = tensor(0.3, -1.0, 2.0).requires_grad_(), tensor(0.1, 1.5, -2.0).requires_grad_()
    assert gradcheck(lambda c, r: PAIR_LOSSES[name](c, r, 0.7, *MORE.get(name, ())), (chosen, rejected))


@pytest.mark.parametrize("name", PAIR_LOSSES)
@pytest.mark.parametrize("gap", [1e4, -1e4])
def test_a_huge_gap_gives_a_finite_loss_and_gradient(name, gap):
    chosen, rejected = tensor(gap).requires_grad_(), tensor(-gap).requires_grad_()
    more = tuple(value[:1] if isinstance(value, torch.Tensor) else value for value in MORE.get(name, ()))
    loss = PAIR_LOSSES[name](chosen, rejected, 1.0, *more).sum()
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(chosen.grad).all()
    assert torch.isfinite(rejected.grad).all()


@pytest.mark.parametrize("name", sorted(set(PAIR_LOSSES) - {"apo_down", "discopop"}))
def test_at_the_reference_a_loss_pushes_the_two_apart(name):
    chosen, rejected = tensor(0.0).requires_grad_(), tensor(0.0).requires_grad_()
    more = {"robust": (0.1,), "exo": (0.1,), "bco": (tensor(0.0),)}.get(name, ())
    PAIR_LOSSES[name](chosen, rejected, 0.5, *more).sum().backward()
    assert chosen.grad.item() <= 0 <= rejected.grad.item()
    assert rejected.grad.item() - chosen.grad.item() > 0


def test_discopop_alone_first_pulls_a_pair_together_as_published():
    # m'(0) (1 - log 2) - 1/4 - 1/2 with m'(0) = 1 / (4 * 0.05): the discovered loss has a hump at the reference.
    chosen = tensor(0.0).requires_grad_()
    losses.discopop(chosen, tensor(0.0), 1.0).sum().backward()
    assert chosen.grad.item() == pytest.approx(5 * (1 - math.log(2)) - 0.75)


def test_apo_down_makes_both_less_likely_and_the_rejected_one_more_so():
    chosen, rejected = tensor(1.0).requires_grad_(), tensor(0.0).requires_grad_()
    losses.apo_down(chosen, rejected, 2.0).sum().backward()
    assert rejected.grad.item() > 0
    at_reference = tensor(0.0).requires_grad_()
    losses.apo_down(at_reference, tensor(-5.0), 2.0).sum().backward()
    assert at_reference.grad.item() > 0  # a pair told apart already: what is left lowers the chosen one


def test_robust_dpo_over_flipped_labels_is_dpo_of_the_true_ones():
    chosen, rejected, wrong = tensor(1.3), tensor(-0.4), 0.2
    right_label = losses.robust(chosen, rejected, 0.5, wrong)
    flipped = losses.robust(rejected, chosen, 0.5, wrong)
    mean = (1 - wrong) * right_label + wrong * flipped
    assert mean.item() == pytest.approx(losses.sigmoid(chosen, rejected, 0.5).item())


def test_conservative_dpo_is_least_where_the_model_believes_a_label_as_much_as_it_is_right():
    chosen = tensor(math.log(0.8 / 0.2) / 0.5).requires_grad_()
    losses.sigmoid(chosen, tensor(0.0), 0.5, 0.2).sum().backward()
    assert chosen.grad.item() == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize(
    ("function", "arguments", "loss"),
    [
        (losses.simpo, (tensor(-0.5), tensor(-1.5), 2.0, 1.0), math.log1p(math.exp(-1))),  # 2 * (-0.5 - -1.5) - 1 = 1
        (losses.log_odds, (tensor(math.log(0.75)),), LN3),
        (losses.log_odds, (tensor(math.log(0.5)),), 0.0),
        (losses.odds_ratio, (tensor(math.log(0.75)), tensor(math.log(0.5))), math.log(4 / 3)),
        (losses.prospect, (tensor(2 * LN3), tensor(1.0), tensor(0.0), 0.5), 0.25),
        (losses.prospect, (tensor(2 * LN3), tensor(0.0), tensor(0.0), 0.5), 0.75),
        (losses.prospect, (tensor(2 * LN3 + 1), tensor(1.0), tensor(1.0), 0.5), 0.25),
        (losses.prospect, (tensor(1.0), tensor(0.0), tensor(1.0), 0.5), 0.5),
    ],
)
def test_what_is_made_of_log_probs_alone_by_hand(function, arguments, loss):
    assert function(*arguments).item() == pytest.approx(loss)


def test_a_certain_completion_has_finite_odds():
    certain = torch.zeros(1, dtype=torch.float32).requires_grad_()
    loss = losses.odds_ratio(certain, torch.tensor([-1.0])).sum()
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(certain.grad).all()


def test_gradients_without_a_reference_match_finite_differences():
    chosen, rejected = tensor(-0.3, -1.0).requires_grad_(), tensor(-0.7, -0.2).requires_grad_()
    assert gradcheck(lambda c, r: losses.simpo(c, r, 2.0, 0.5), (chosen, rejected))
    assert gradcheck(losses.odds_ratio, (chosen, rejected))
    assert gradcheck(lambda r: losses.prospect(r, tensor(1.0, 0.0), tensor(0.1, 0.1), 0.5), (chosen,))
