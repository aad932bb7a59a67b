"""Selection: which samples are kept, by hand; what is trained on; how the quantile rises."""

import numpy as np
import pytest
import torch
from algo_examples import Table, count, group, lay_out, sample
from hypothesis import given
from hypothesis import strategies as st

from penstock.algos import RFT
from penstock.algos.rft import reaches_quantile
from penstock.core.errors import TrainingError


def label(algorithm, *groups, quantile=0.5):
    return algorithm.label(groups, {}, {"quantile": quantile})


@pytest.mark.parametrize(
    ("rewards", "quantile", "least", "kept"),
    [
        ([0.0, 1.0, 2.0, 3.0], 0.0, None, [1, 1, 1, 1]),
        ([0.0, 1.0, 2.0, 3.0], 0.5, None, [0, 0, 1, 1]),  # the median is 1.5
        ([0.0, 1.0, 2.0, 3.0], 1.0, None, [0, 0, 0, 1]),
        ([0.0, 1.0, 1.0, 1.0], 0.9, None, [0, 1, 1, 1]),  # ties with the quantile are kept
        ([2.0, 2.0, 2.0], 0.5, None, [0, 0, 0]),  # nothing says that they are good
        ([1.0, 1.0, 1.0], 0.5, 1.0, [1, 1, 1]),  # the bound does
        ([0.0, 0.0, 0.0], 0.5, 1.0, [0, 0, 0]),
        ([0.0, 0.5, 1.0], 0.0, 1.0, [0, 0, 1]),
        ([4.0], 0.5, None, [0]),
        (range(21), 0.6000000000000001, None, [0] * 12 + [1] * 9),  # a tie is kept though the quantile is off by rounding
    ],
)
def test_what_reaches_a_quantile_by_hand(rewards, quantile, least, kept):
    assert reaches_quantile(rewards, quantile, least).tolist() == [bool(k) for k in kept]


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=9), st.floats(0, 1), st.floats(0, 1))
def test_a_higher_quantile_keeps_fewer_but_always_the_best(rewards, one, other):
    low, high = sorted((one, other))
    few, many = reaches_quantile(rewards, high, None), reaches_quantile(rewards, low, None)
    assert not (few & ~many).any()
    assert few[np.argmax(rewards)] == (np.ptp(rewards) > 0)


@pytest.mark.parametrize(("rewards", "quantile"), [([], 0.5), ([np.nan, 1.0], 0.5), ([np.inf, 1.0], 0.5), ([1.0, 2.0], 1.5)])
def test_undefined_selections_are_refused(rewards, quantile):
    with pytest.raises(TrainingError):
        reaches_quantile(rewards, quantile, None)


def test_only_answers_are_trained_on_and_never_the_prompt():
    # The incumbent's bug: its rows were prompt and answer, both with a loss.
    ((row,),) = label(RFT(), group(sample([2, 3], 1.0, prompt=(1, 4, 5)), sample([3], 0.0, prompt=(1, 4, 5))))
    assert row.tokens_T.tolist() == [1, 4, 5, 2, 3]
    assert row.action_T.tolist() == [False, False, False, True, True]
    batch, fields = lay_out([(row,)])
    model = Table()
    loss, _ = RFT().loss()(model.outputs(batch), fields, batch, count([(row,)]))
    loss.backward()
    # The table's rows are the tokens before an action: 5 and 2. Those before prompt tokens learn nothing.
    assert torch.nonzero(model.logits.grad.abs().sum(1)).flatten().tolist() == [2, 5]


def test_the_loss_is_the_mean_likelihood_of_the_kept():
    units = label(RFT(), group(sample([2, 3], 1.0), sample([3], 0.0)), group(sample([4], 2.0), sample([5], 0.0)))
    model = Table()
    total, _, _ = model.accumulate(RFT().loss(), [units], count(units))
    logp = model.logits.detach().log_softmax(-1)
    assert total == pytest.approx(-(logp[1, 2] + logp[2, 3] + logp[1, 4]).item() / 3)


def test_equal_answers_to_a_prompt_count_once():
    (unit,) = label(RFT(), group(sample([2, 3], 1.0), sample([2, 3], 1.0), sample([2], 1.0), sample([4], 0.0)))
    assert [row.tokens_T.tolist() for row in unit] == [[1, 2, 3], [1, 2]]


def test_equal_answers_to_different_prompts_both_count():
    groups = [group(sample([2], 1.0, prompt=(p,)), sample([3], 0.0, prompt=(p,)), ordinal=p) for p in (1, 4)]
    assert len(label(RFT(), *groups)) == 2


def test_samples_that_failed_are_neither_kept_nor_counted():
    bad = sample([5], 9.0, error="RewardError: none")
    (unit,) = label(RFT(), group(sample([2], 1.0), bad, sample([3], 0.0), sample([4], None)))
    assert [row.tokens_T.tolist() for row in unit] == [[1, 2]]


def test_a_prompt_of_which_nothing_is_kept_is_left_out():
    assert label(RFT(), group(sample([2], 0.0), sample([3], 0.0))) == []
    assert label(RFT(least=1.0), group(sample([2], 0.0), sample([3], 0.5))) == []


def test_a_verifier_keeps_exactly_what_was_verified():
    verified = RFT(start=0.0, end=0.0, least=1.0)
    (unit,) = label(verified, group(sample([2], 1.0), sample([3], 0.0), sample([4], 1.0)), quantile=0.0)
    assert [row.tokens_T.tolist() for row in unit] == [[1, 2], [1, 4]]


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [(RFT(start=0.2, end=0.8, rise=3), [0.2, 0.4, 0.6, 0.8, 0.8]), (RFT(start=0.5, end=0.5), [0.5] * 5)],
)
def test_the_quantile_rises_to_its_end_and_stays(algorithm, expected):
    control, seen = algorithm.initial_coefficients(), []
    for _ in range(5):
        seen.append(control["quantile"])
        control = algorithm.adapt(control, {})
    assert seen == pytest.approx(expected)


def test_the_quantile_in_force_decides():
    members = group(*[sample([token], float(token)) for token in (2, 3, 4, 5)])
    assert [len(label(RFT(), members, quantile=q)[0]) for q in (0.0, 0.5, 1.0)] == [4, 2, 1]


def test_a_rising_quantile_drifts_by_no_rounding():
    """Of the rewards 0 to 20 those from 20 q on are kept in every batch; adding 0.05 again and again misses six of nine."""
    algorithm = RFT(start=0.5, end=0.9, rise=8)
    control = algorithm.initial_coefficients()
    for batch in range(9):
        assert reaches_quantile(range(21), control["quantile"], None).sum() == 21 - (10 + batch)
        control = algorithm.adapt(control, {})
    assert control["quantile"] == 0.9
