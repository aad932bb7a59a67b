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


def log(*ratios):
    return tuple(math.log(ratio) for ratio in ratios)


def dual(gap):
    return surrogates.clipped(gap.exp(), tensor(-1.0, -1.0, -1.0, 1.0), low=0.2, high=0.2, dual=3.0)


def weight(ratio, low, high):
    return lambda logp: surrogates.clipped_weight(tensor(ratio), logp, tensor(2.0), low=low, high=high)


def geometric(*advantage):
    rows = ROWS[: len(advantage)]
    return lambda gap: surrogates.geometric_mean(gap, tensor(*advantage), ONE[: len(rows)], rows, low=0.5, high=0.5)


def gate(*advantage, negative=2.0):
    return lambda gap: surrogates.soft_gate(gap.exp(), tensor(*advantage), positive=1.0, negative=negative)


def tapered(gap, advantage):
    return lambda logp: surrogates.tapered(tensor(*gap), logp, tensor(*advantage), ROWS[: len(gap)], low=0.0, high=1.0)


def masked(divergence, advantage, **more):
    return lambda gap: surrogates.divergence_masked(
        gap.exp(), tensor(*divergence), tensor(*advantage), **({"threshold": 0.2} | more)
    )


def half_detached(gap):
    return surrogates.detached(surrogates.clipped(gap.exp(), tensor(1.0, 1.0), low=0.2, high=0.2), tensor(1.0, 0.0))


def penalised(gap):
    return surrogates.penalised(tensor(2.0, 2.0), gap, tensor(1.0, 1.0), tensor(0.0, 1.0), coefficient=0.5)


E = math.exp(0.1)
BY_HAND = {  # a surrogate of log-ratios or log-probs, these, and gains, gradients and cuts
    # min(-5, -5) but not below 3 * -1; above the interval, still pushed down; PPO's own border; positive ones know no dual
    "the dual clip": (dual, log(5, 2, 0.5, 5), [-3.0, -2.0, -0.8, 1.2], [0, -2.0, 0, 0], [True, False, True, True]),
    "the policy gradient is the advantage times that of the log-prob": (
        lambda logp: surrogates.policy_gradient(logp, tensor(3.0, -0.5)), (-1.0, -2.0), [-3.0, 1.0], [3.0, -0.5], [False] * 2,
    ),
    "a clipped weight scales the gradient and never stops it": (weight(1.5, 0.2, 0.2), (-1.0,), [-2.4], [2 * 1.2], [True]),
    "a clipped weight has a lower border": (weight(0.5, 0.2, 0.2), (-1.0,), [-1.6], [2 * 0.8], [True]),
    "a clipped weight may have none": (weight(0.5, 1.0, 4.0), (-1.0,), [-1.0], [2 * 0.5], [False]),
    "PipelineRL's min(ratio, 5)": (weight(9.0, 1.0, 4.0), (-1.0,), [-10.0], [2 * 5.0], [True]),
    # row 0, A = 2: ratios 4 and 1/2; the first is clipped to 1.5, the second is wanted up and keeps: sqrt(1.5 * 0.5)
    # row 1, A = -1: ratio 4 is wanted down and stays: -4
    "the geometric mean": (
        geometric(2.0, 2.0, -1.0), log(4, 0.5, 4), [2 * 0.75**0.5, 2 * 0.75**0.5, -4.0], None, [True, False, False],
    ),
    # A = -1, ratio 1/4 below 1/2: min over the signed ratios keeps the border, and no gradient
    "the geometric mean of a falling negative ratio is clipped": (geometric(-1.0), log(0.25), [-0.5], [0.0], [True]),
    # 4 * sigmoid(0); temperature 1; temperature 2: 4/2 * sigmoid(2)
    "the soft gate": (
        gate(1.0, 1.0, -1.0), log(1, 2, 2), [2.0, 4 / (1 + math.exp(-1)), -2 / (1 + math.exp(-2))], None, None,
    ),
    "the soft gate begins as the plain policy gradient": (gate(1.5, -0.5, negative=1.05), log(1, 1), None, [1.5, -0.5], None),
    # row 0, A = -1: ratios 1/2 and 1/2, product 1/4; row 1, A = 2: weight 1 whatever the ratio
    "tapering weighs bad sequences by their whole ratio": (
        tapered(log(0.5, 0.5, 2), (-1.0, -1.0, 2.0)), (-1.0, -1.0, -3.0), None, [-0.25, -0.25, 2.0], [False] * 3,
    ),
    "tapering cuts the weight of a bad one that became likelier": (tapered(log(2), (-1.0,)), (-1.0,), None, [-1.0], [True]),
    # up, wanted up, too far; the probability hardly moved; up, wanted down: back into the region; down, wanted down; wanted up
    "the divergence mask": (
        masked((0.3, 0.1, 0.3, 0.3, 0.3), (1.0, 1.0, -1.0, -1.0, 1.0)), log(1.5, 1.5, 1.5, 0.5, 0.5),
        [1.5, 1.5, -1.5, -0.5, 0.5], [0.0, 1.5, -1.5, 0.0, 0.5], [True, False, False, True, False],
    ),
    "a cap bounds what a ratio counts and how it pulls": (
        masked((0.1, 0.1), (1.0, 1.0), threshold=0.15, cap=20.0), log(2, 30), [2.0, 20.0], [2.0, 20.0], [False] * 2,
    ),
    "detached tokens keep their value and lose their gradient": (half_detached, (0.1, 0.1), [E, E], [0.0, E], [True, False]),
    "the covariance penalty acts on chosen tokens alone": (penalised, log(2, 0.5), [2.0, 2.0 - 0.5 * LN2], None, None),
}  # fmt: skip


@pytest.mark.parametrize("case", BY_HAND)
def test_gain_gradient_and_cut_by_hand(case):
    surrogate, values, expected_gain, expected_gradient, expected_cut = BY_HAND[case]
    leaf = tensor(*values).requires_grad_()
    gain, cut = surrogate(leaf)
    gain.sum().backward()
    assert expected_gain is None or gain.tolist() == pytest.approx(expected_gain)
    assert expected_gradient is None or leaf.grad.tolist() == pytest.approx(expected_gradient)
    assert expected_cut is None or cut.tolist() == expected_cut


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


def test_divergences_of_one_token_by_hand():
    # old 0.5, new 0.25: |0.25 - 0.5|; 0.5 ln(0.5/0.25) + 0.5 ln(0.5/0.75)
    new, old = tensor(math.log(0.25)), tensor(math.log(0.5))
    assert surrogates.total_variation(new, old).item() == pytest.approx(0.25)
    assert surrogates.binary_kl(new, old).item() == pytest.approx(0.5 * LN2 + 0.5 * math.log(0.5 / 0.75))


def test_the_binary_kl_of_a_certain_token_is_finite_and_zero():
    assert surrogates.binary_kl(tensor(0.0), tensor(0.0)).item() == pytest.approx(0.0, abs=1e-6)


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
