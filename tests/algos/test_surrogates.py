"""Surrogates of the policy objective against values worked out by hand, and what each must not depend on."""

import math

import pytest
import torch
from algo_examples import tensor
from torch.autograd import gradcheck

from penstock.algos import surrogates
from penstock.core.errors import TrainingError

LN2 = math.log(2)
ROWS = torch.tensor([0, 0, 1])
ONE = torch.ones(3, dtype=torch.float64)


def test_a_sequence_ratio_is_the_geometric_mean_of_its_tokens():
    # row 0: ratios 4 and 1, mean log ln 2; row 1: ratio 1/2
    found = surrogates.sequence_ratio(tensor(2 * LN2, 0.0, -LN2), ONE, ROWS)
    torch.testing.assert_close(found, tensor(2.0, 2.0, 0.5))


def test_tokens_of_weight_0_count_in_no_sequence_ratio():
    found = surrogates.sequence_ratio(tensor(2 * LN2, 0.0, -LN2), tensor(1.0, 0.0, 1.0), ROWS)
    torch.testing.assert_close(found, tensor(4.0, 4.0, 0.5))


def test_the_sequence_token_ratio_has_the_sequence_s_value_and_the_token_s_gradient():
    gap = tensor(2 * LN2, 0.0, -LN2).requires_grad_()
    found = surrogates.sequence_token_ratio(gap, ONE, ROWS)
    torch.testing.assert_close(found.detach(), tensor(2.0, 2.0, 0.5))
    (gradient,) = torch.autograd.grad(found[0], gap)
    torch.testing.assert_close(gradient, tensor(2.0, 0.0, 0.0))


@pytest.mark.parametrize(
    ("ratio", "advantage", "gain", "cut"),
    [
        (5.0, -1.0, -3.0, True),  # min(-5, -5) = -5, but not below 3 * -1
        (2.0, -1.0, -2.0, False),  # above the interval, still pushed down
        (0.5, -1.0, -0.8, True),  # PPO's own border
        (5.0, 1.0, 1.2, True),  # positive advantages know no dual border
    ],
)
def test_the_dual_clip_by_hand(ratio, advantage, gain, cut):
    found = surrogates.clipped(tensor(ratio), tensor(advantage), low=0.2, high=0.2, dual=3.0)
    assert (found[0].item(), found[1].item()) == (pytest.approx(gain), cut)


def test_the_policy_gradient_is_the_advantage_times_the_gradient_of_the_log_prob():
    logp = tensor(-1.0, -2.0).requires_grad_()
    gain, cut = surrogates.policy_gradient(logp, tensor(3.0, -0.5))
    gain.sum().backward()
    assert gain.tolist() == [-3.0, 1.0]
    assert logp.grad.tolist() == [3.0, -0.5]
    assert not cut.any()


@pytest.mark.parametrize(
    ("ratio", "low", "high", "gradient", "cut"),
    [
        (1.5, 0.2, 0.2, 1.2, True),  # cut to 1.2, and yet the token learns
        (0.5, 0.2, 0.2, 0.8, True),
        (0.5, 1.0, 4.0, 0.5, False),  # no lower border
        (9.0, 1.0, 4.0, 5.0, True),  # PipelineRL's min(ratio, 5)
    ],
)
def test_a_clipped_weight_scales_the_gradient_and_never_stops_it(ratio, low, high, gradient, cut):
    logp = tensor(-1.0).requires_grad_()
    gain, was_cut = surrogates.clipped_weight(tensor(ratio), logp, tensor(2.0), low=low, high=high)
    gain.sum().backward()
    assert logp.grad.item() == pytest.approx(2.0 * gradient)
    assert was_cut.item() is cut


def test_the_geometric_mean_objective_by_hand():
    # row 0, A = 2: ratios 4 and 1/2; the first is clipped to 1.5, the second is wanted up and keeps: sqrt(1.5 * 0.5)
    # row 1, A = -1: ratio 4 is wanted down and stays: -4
    gap = tensor(2 * LN2, -LN2, 2 * LN2)
    gain, cut = surrogates.geometric_mean(gap, tensor(2.0, 2.0, -1.0), ONE, ROWS, low=0.5, high=0.5)
    torch.testing.assert_close(gain, tensor(2 * 0.75**0.5, 2 * 0.75**0.5, -4.0))
    assert cut.tolist() == [True, False, False]


def test_the_geometric_mean_of_a_falling_negative_ratio_is_clipped():
    # A = -1, ratio 1/4 below 1/2: min over the signed ratios keeps the border, and no gradient
    gap = tensor(-2 * LN2).requires_grad_()
    gain, cut = surrogates.geometric_mean(gap, tensor(-1.0), ONE[:1], ROWS[:1], low=0.5, high=0.5)
    gain.sum().backward()
    assert (gain.item(), gap.grad.item(), cut.item()) == (pytest.approx(-0.5), 0.0, True)


def test_the_geometric_mean_of_a_row_does_not_depend_on_its_micro_batch():
    """The incumbent's mean is over the micro-batch: its gradient moves when the same rows are split differently."""
    gap, advantage = tensor(0.1, 0.2, -0.3, 0.4, 0.05), tensor(1.0, 1.0, -2.0, -2.0, -2.0)
    rows = torch.tensor([0, 0, 1, 1, 1])
    one = torch.ones(5, dtype=torch.float64)

    def gradient(parts):
        leaf = gap.clone().requires_grad_()
        for part in parts:
            start = int(rows[part].min())
            gain, _ = surrogates.geometric_mean(leaf[part], advantage[part], one[part], rows[part] - start, low=0.5, high=0.5)
            (gain / torch.bincount(rows)[rows][part] / 2).sum().backward()
        return leaf.grad

    whole = gradient([slice(0, 5)])
    torch.testing.assert_close(gradient([slice(0, 2), slice(2, 5)]), whole)


@pytest.mark.parametrize(
    ("ratio", "advantage", "gain"),
    [
        (1.0, 1.0, 2.0),  # 4 * sigmoid(0)
        (2.0, 1.0, 4 / (1 + math.exp(-1))),  # temperature 1
        (2.0, -1.0, -2 / (1 + math.exp(-2))),  # temperature 2: 4/2 * sigmoid(2)
    ],
)
def test_the_soft_gate_by_hand(ratio, advantage, gain):
    found, _ = surrogates.soft_gate(tensor(ratio), tensor(advantage), positive=1.0, negative=2.0)
    assert found.item() == pytest.approx(gain)


@pytest.mark.parametrize("advantage", [1.5, -0.5])
def test_the_soft_gate_begins_as_the_plain_policy_gradient(advantage):
    gap = tensor(0.0).requires_grad_()
    gain, _ = surrogates.soft_gate(gap.exp(), tensor(advantage), positive=1.0, negative=1.05)
    gain.sum().backward()
    assert gap.grad.item() == pytest.approx(advantage)


def test_tapering_weighs_bad_sequences_by_their_whole_ratio():
    # row 0, A = -1: ratios 1/2 and 1/2, product 1/4; row 1, A = 2: weight 1 whatever the ratio
    logp = tensor(-1.0, -1.0, -3.0).requires_grad_()
    gain, cut = surrogates.tapered(tensor(-LN2, -LN2, LN2), logp, tensor(-1.0, -1.0, 2.0), ROWS, low=0.0, high=1.0)
    gain.sum().backward()
    torch.testing.assert_close(logp.grad, tensor(-0.25, -0.25, 2.0))
    assert not cut.any()


def test_tapering_cuts_the_weight_of_a_bad_sequence_that_became_likelier():
    logp = tensor(-1.0).requires_grad_()
    gain, cut = surrogates.tapered(tensor(LN2), logp, tensor(-1.0), ROWS[:1], low=0.0, high=1.0)
    gain.sum().backward()
    assert (logp.grad.item(), cut.item()) == (-1.0, True)


def test_divergences_of_one_token_by_hand():
    # old 0.5, new 0.25: |0.25 - 0.5|; 0.5 ln(0.5/0.25) + 0.5 ln(0.5/0.75)
    new, old = tensor(math.log(0.25)), tensor(math.log(0.5))
    assert surrogates.total_variation(new, old).item() == pytest.approx(0.25)
    assert surrogates.binary_kl(new, old).item() == pytest.approx(0.5 * LN2 + 0.5 * math.log(0.5 / 0.75))


def test_the_binary_kl_of_a_certain_token_is_finite_and_zero():
    assert surrogates.binary_kl(tensor(0.0), tensor(0.0)).item() == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize(
    ("ratio", "divergence", "advantage", "gradient"),
    [
        (1.5, 0.3, 1.0, 0.0),  # up, wanted up, too far
        (1.5, 0.1, 1.0, 1.5),  # up, but the probability hardly moved
        (1.5, 0.3, -1.0, -1.5),  # up, wanted down: back into the region
        (0.5, 0.3, -1.0, 0.0),
        (0.5, 0.3, 1.0, 0.5),
    ],
)
def test_the_divergence_mask_by_hand(ratio, divergence, advantage, gradient):
    gap = tensor(math.log(ratio)).requires_grad_()
    gain, cut = surrogates.divergence_masked(gap.exp(), tensor(divergence), tensor(advantage), threshold=0.2)
    gain.sum().backward()
    assert gain.item() == pytest.approx(ratio * advantage)
    assert gap.grad.item() == pytest.approx(gradient)
    assert cut.item() is (gradient == 0)


def test_detached_tokens_keep_their_value_and_lose_their_gradient():
    gap = tensor(0.1, 0.1).requires_grad_()
    gain, cut = surrogates.detached(surrogates.clipped(gap.exp(), tensor(1.0, 1.0), low=0.2, high=0.2), tensor(1.0, 0.0))
    gain.sum().backward()
    assert gain[0] == gain[1]
    torch.testing.assert_close(gap.grad, tensor(0.0, math.exp(0.1)))
    assert cut.tolist() == [True, False]


def test_the_covariance_penalty_acts_on_chosen_tokens_alone():
    gain, _ = surrogates.penalised(tensor(2.0, 2.0), tensor(LN2, -LN2), tensor(1.0, 1.0), tensor(0.0, 1.0), coefficient=0.5)
    torch.testing.assert_close(gain, tensor(2.0, 2.0 - 0.5 * LN2))


def test_advantages_that_differ_within_a_row_are_refused_where_a_row_has_one():
    surrogates.check_one_advantage_a_row(tensor(1.0, 1.0, 2.0), ROWS)
    with pytest.raises(TrainingError, match="one advantage for all its tokens"):
        surrogates.check_one_advantage_a_row(tensor(1.0, 1.5, 2.0), ROWS)


def stop(function):
    """The gain alone, for finite differences."""
    return lambda *arguments: function(*arguments)[0]


@pytest.mark.parametrize(
    "gain",
    [
        stop(lambda gap, a, w, rows: surrogates.clipped(gap.exp(), a, low=0.2, high=0.3, dual=2.0)),
        stop(lambda gap, a, w, rows: surrogates.clipped(surrogates.sequence_ratio(gap, w, rows), a, low=0.2, high=0.3)),
        stop(lambda gap, a, w, rows: surrogates.policy_gradient(gap, a)),
        stop(lambda gap, a, w, rows: surrogates.clipped_weight(a.exp(), gap, a, low=0.2, high=0.3)),
        stop(lambda gap, a, w, rows: surrogates.geometric_mean(gap, a[rows], w, rows, low=0.2, high=0.3)),
        stop(lambda gap, a, w, rows: surrogates.soft_gate(gap.exp(), a, positive=1.0, negative=1.05)),
        stop(lambda gap, a, w, rows: surrogates.tapered(a, gap, a, rows, low=0.0, high=1.0)),
        stop(lambda gap, a, w, rows: surrogates.penalised(gap.exp(), gap, a, (a > 0).to(a.dtype), coefficient=0.5)),
    ],
    ids=["ppo", "gspo", "gradient", "cispo", "gmpo", "sapo", "topr", "kl-cov"],
)
def test_gradients_match_finite_differences(gain):
    generator = torch.Generator().manual_seed(0)
    gap, advantage = (torch.randn(9, generator=generator, dtype=torch.float64) for _ in range(2))
    rows = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2])
    weight = torch.rand(9, generator=generator, dtype=torch.float64) + 0.1
    assert gradcheck(lambda value: gain(value, advantage, weight, rows), (gap.requires_grad_(),))


def test_a_product_ratio_is_that_of_the_whole_answer():
    # row 0: ratios 4 and 1/2, product 2; row 1: 1/2; a cell of weight 0 is no part of it
    torch.testing.assert_close(surrogates.product_ratio(tensor(2 * LN2, -LN2, -LN2), ONE, ROWS), tensor(2.0, 2.0, 0.5))
    weight = tensor(1.0, 0.0, 1.0)
    torch.testing.assert_close(surrogates.product_ratio(tensor(2 * LN2, -LN2, -LN2), weight, ROWS), tensor(4.0, 4.0, 0.5))


def test_the_gradient_of_a_product_ratio_is_that_of_the_answer_s_log_prob():
    gap = tensor(LN2, 0.0, 0.0).requires_grad_()
    gain, _ = surrogates.clipped(surrogates.product_ratio(gap, ONE, ROWS), tensor(1.0, 1.0, 1.0), low=0.5, high=9.0)
    (gain * tensor(0.5, 0.5, 1.0)).sum().backward()  # the mean over a row of its one gain
    torch.testing.assert_close(gap.grad, tensor(2.0, 2.0, 1.0))


@pytest.mark.parametrize(("ratio", "value", "gradient"), [(2.0, 2.0, 2.0), (30.0, 20.0, 20.0)])
def test_a_cap_bounds_what_a_ratio_counts_and_how_it_pulls(ratio, value, gradient):
    gap = tensor(math.log(ratio)).requires_grad_()
    gain, cut = surrogates.divergence_masked(gap.exp(), tensor(0.1), tensor(1.0), threshold=0.15, cap=20.0)
    gain.sum().backward()
    assert (gain.item(), gap.grad.item(), cut.item()) == (pytest.approx(value), pytest.approx(gradient), False)
