"""Losses against hand-computed values, finite differences, and the layouts in which the same tokens may arrive."""

import math

import pytest
import torch
from algo_examples import tensor
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck

from penstock.algos import losses, surrogates
from penstock.core.errors import TrainingError


def policy_loss(logp, old_logp, advantage, weight, *, low, high, denominator):
    """PPO's loss: the clipped surrogate of token ratios under a weighted mean."""
    gap = losses.log_ratio(logp, old_logp, weight)
    gain, _ = surrogates.clipped(gap.exp(), losses.counted(advantage, weight), low=low, high=high)
    return -losses.weighted_mean(gain, weight, denominator=denominator)


def clip_loss(ratio, advantage, low=0.2, high=0.2):
    """The surrogate of one token whose ratio is ``ratio``, and its gradient by the log-prob."""
    logp = tensor(math.log(ratio)).requires_grad_()
    loss = policy_loss(logp, tensor(0.0), tensor(advantage), tensor(1.0), low=low, high=high, denominator=1)
    loss.backward()
    return loss.item(), logp.grad.item()


@pytest.mark.parametrize(
    ("ratio", "advantage", "clip", "loss", "gradient"),
    [
        (1.0, 2.0, (0.2, 0.2), -2.0, -2.0),  # ratio 1: plain policy gradient, -A
        (1.1, 2.0, (0.2, 0.2), -2.2, -2.2),  # inside: -r A, gradient -r A
        (1.5, 2.0, (0.2, 0.2), -2.4, 0.0),  # wanted up and above 1.2: min(3.0, 2.4), no gradient
        (0.5, 2.0, (0.2, 0.2), -1.0, -1.0),  # wanted up but below: min(1.0, 1.6) keeps pushing up
        (0.5, -2.0, (0.2, 0.2), 1.6, 0.0),  # wanted down and below 0.8: min(-1.0, -1.6), no gradient
        (1.5, -2.0, (0.2, 0.2), 3.0, 3.0),  # wanted down but above: min(-3.0, -2.4) keeps pushing down
        (1.25, 1.0, (0.2, 0.28), -1.25, -1.25),  # the clip may be wider above than below
        (1.25, 1.0, (0.2, 0.2), -1.2, 0.0),
        (7.0, 1.0, (1.0, math.inf), -7.0, -7.0),  # an open interval never clips
    ],
)
def test_the_clipped_surrogate_by_hand(ratio, advantage, clip, loss, gradient):
    assert clip_loss(ratio, advantage, *clip) == pytest.approx((loss, gradient), abs=1e-12)


def test_a_wild_ratio_stays_finite():
    loss, gradient = clip_loss(math.exp(300), -1.0)
    assert loss == pytest.approx(math.exp(20))
    assert gradient == 0


def test_policy_metrics_by_hand():
    # ratios 1.5 (cut: wanted up), 0.5 (not cut: wanted up), 1 and 0.5 (cut: wanted down); 4 tokens
    logp = tensor(1.5, 0.5, 1.0, 0.5).log()
    advantage = tensor(1.0, 1.0, -1.0, -1.0)
    _, cut = surrogates.clipped(logp.exp(), advantage, low=0.2, high=0.2)
    metrics = losses.policy_metrics(logp, cut, torch.ones_like(logp), denominator=4)
    assert metrics["policy/clip_fraction"].item() == pytest.approx(0.5)
    # ratio - 1 - ln ratio: 0.5 - ln 1.5, -0.5 + ln 2, 0, -0.5 + ln 2
    assert metrics["policy/approx_kl"].item() == pytest.approx((0.5 - math.log(1.5) + 2 * (math.log(2) - 0.5)) / 4)
    assert metrics["max/ratio_deviation"].item() == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("value", "old_value", "returns", "clip", "loss"),
    [
        (1.0, 1.0, 3.0, 0.2, 2.0),  # 0.5 * (1-3)²
        (2.0, 1.0, 3.0, 0.2, 0.5 * 1.8**2),  # clipped to 1.2: max(1, 1.8²)
        (2.0, 1.0, 0.0, 0.2, 2.0),  # max(2², 1.2²): unclipped is worse
        (0.0, 1.0, -1.0, 0.2, 0.5 * 1.8**2),  # clipped to 0.8: max(1, 1.8²)
        (2.0, 1.0, 5.0, None, 4.5),  # without a clip half the squared error
    ],
)
def test_the_clipped_value_loss_by_hand(value, old_value, returns, clip, loss):
    numbers = tensor(value), tensor(old_value), tensor(returns), tensor(1.0)
    assert losses.clipped_value_loss(*numbers, clip=clip, denominator=1).item() == pytest.approx(loss)


def test_value_metrics_by_hand():
    # errors 2² and 1² over 2 tokens; only the first moved by more than 0.2
    metrics = losses.value_metrics(tensor(1.0, 1.0), tensor(0.0, 0.9), tensor(3.0, 2.0), clip=0.2, denominator=2)
    assert (metrics["value/squared_error"].item(), metrics["value/clip_fraction"].item()) == (2.5, 0.5)


def test_the_weighted_mean_by_hand():
    found = losses.weighted_mean(tensor(-1.0, -2.0, -3.0), tensor(1.0, 0.5, 0.0), denominator=2)
    assert found.item() == pytest.approx(-(1 + 1) / 2)


def test_kl_loss_is_the_weighted_mean_of_its_estimator():
    found = losses.kl_loss(tensor(-1.0, -2.0), tensor(-2.0, -4.0), tensor(0.1, 0.2), estimator="k2", denominator=2)
    assert found.item() == pytest.approx((0.1 * 0.5 + 0.2 * 2.0) / 2)


@pytest.mark.parametrize("denominator", [0.0, -1.0, math.nan])
def test_a_denominator_that_is_not_positive_is_refused(denominator):
    with pytest.raises(TrainingError, match="nothing to train on"):
        losses.weighted_mean(tensor(1.0), tensor(1.0), denominator=denominator)


def random_tokens(seed, *shape):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(
    "loss",
    [
        lambda x, other, third, w: policy_loss(x, other, third, w, low=0.2, high=0.3, denominator=3),
        lambda x, other, third, w: losses.clipped_value_loss(x, other, third, w, clip=0.2, denominator=3),
        lambda x, other, third, w: losses.kl_loss(x, other, w, estimator="k2", denominator=3),
        lambda x, other, third, w: losses.kl_loss(x, other, w, estimator="k3", denominator=3),
        lambda x, other, third, w: losses.kl_loss(x, other, w, estimator="absolute", denominator=3),
        lambda x, other, third, w: losses.weighted_mean(x, w, denominator=3),
    ],
    ids=["policy", "value", "k2", "k3", "absolute", "likelihood"],
)
def test_gradients_match_finite_differences(loss):
    x, other, third = (random_tokens(seed, 12) for seed in (1, 2, 3))
    weight = random_tokens(4, 12).abs()
    assert gradcheck(lambda value: loss(value, other, third, weight), (x.requires_grad_(),))


LENGTHS = st.lists(st.integers(1, 5), min_size=1, max_size=4)


def padded(packed, lengths, side, fill):
    """Packed [A] tokens as [B, T], padded with ``fill`` on one side."""
    grid = torch.full((len(lengths), max(lengths)), fill, dtype=torch.float64)
    for row, part in enumerate(packed.split(lengths)):
        grid[row, slice(0, len(part)) if side == "right" else slice(max(lengths) - len(part), None)] = part
    return grid


@given(LENGTHS, st.sampled_from(["left", "right"]), st.sampled_from([0.0, math.nan, math.inf, -math.inf]))
def test_padding_on_either_side_with_any_garbage_equals_packing(lengths, side, garbage):
    columns = [random_tokens(seed, sum(lengths)) for seed in range(5)]
    weight = random_tokens(9, sum(lengths)).abs() + 0.1

    def total(arguments, weight):
        logp, old, advantage, value, returns = arguments
        return (
            policy_loss(logp, old, advantage, weight, low=0.2, high=0.2, denominator=7)
            + losses.clipped_value_loss(value, old, returns, weight, clip=0.2, denominator=7)
            + losses.kl_loss(logp, old, weight, estimator="k3", denominator=7)
            - losses.weighted_mean(logp, weight, denominator=7)
        )

    results = []
    for arrange in (lambda x, _: x.clone(), lambda x, fill: padded(x, lengths, side, fill)):
        leaves = [column.clone().requires_grad_() for column in columns]
        loss = total([arrange(leaf, garbage) for leaf in leaves], arrange(weight, 0.0))
        loss.backward()
        results.append([loss.detach(), *(leaf.grad for leaf in leaves)])
    for packed_result, padded_result in zip(*results, strict=True):
        torch.testing.assert_close(padded_result, packed_result)
