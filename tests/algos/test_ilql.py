"""ILQL: rows from rewards, and the loss by hand."""

import math

import pytest
import torch
from algo_examples import Letters, Table, count, lay_out

from penstock.algos import ILQL
from penstock.core.contracts import Denominator
from penstock.core.errors import DataError


def example(reward):
    return {"prompt": "a", "completion": "bc", "reward": reward}


def test_a_reward_lands_on_the_end_token_and_prompts_are_no_actions():
    (row,) = ILQL().rows(example(0.5), Letters())
    assert row.tokens_T.tolist() == [1, 2, 3, 6]
    assert row.action_T.tolist() == [False, True, True, True]
    assert row.fields["step_reward"].tolist() == [0.0, 0.0, 0.5]


def test_rewards_may_come_one_a_token():
    (row,) = ILQL().rows(example([1.0, 2.0, 3.0]), Letters())
    assert row.fields["step_reward"].tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("reward", "problem"),
    [
        (None, "finite"),
        ("much", "finite"),
        (math.nan, "finite"),
        (math.inf, "finite"),
        ([1.0, [2.0]], "finite"),
        ([1.0, 2.0], "2 rewards for 3"),
        ([[1.0, 2.0, 3.0]], "3 rewards for 3"),
    ],
)
def test_an_undefined_reward_is_refused(reward, problem):
    with pytest.raises(DataError, match=problem):
        ILQL().rows(example(reward), Letters())


def by_hand(**fields):
    """Two actions of one row: rewards 0 and 1, Q (1, 3) and (2, 2), targets min 1 and 0.5, V 0.5 and 1, logp -1 and -2."""
    outputs = {
        "logp": torch.tensor([-1.0, -2.0]),
        "q": torch.tensor([[1.0, 3.0], [2.0, 2.0]]),
        "q/logsumexp": torch.tensor([[3.0, 4.0], [2.5, 2.5]]),
        "q/target": torch.tensor([[1.0, 7.0], [0.5, 0.6]]),
        "q/state_value": torch.tensor([0.5, 1.0]),
    }
    fields_A = {"weight": torch.ones(2), "step_reward": torch.tensor([0.0, 1.0])}
    batch = type("Batch", (), {"row_A": torch.tensor([0, 0])})
    return ILQL(**fields).loss()(outputs, fields_A, batch, Denominator(tokens=2, rows=1, units=1))


def test_the_loss_by_hand():
    loss, metrics = by_hand(discount=0.5, expectile=0.75, conservative=0.1, imitation=2.0)
    # Backups: 0 + 0.5 · 1 and 1 + 0, as nothing follows the last action.
    difference = (0.5**2 + 2.5**2 + 1.0 + 1.0) / 2
    value = (0.75 * 0.5**2 + 0.25 * 0.5**2) / 2  # target 1 over V 0.5; target 0.5 under V 1
    conservative = (2.0 + 1.0 + 0.5 + 0.5) / 2
    imitation = 3.0 / 2
    assert metrics["q/loss"].item() == pytest.approx(difference)
    assert metrics["value/loss"].item() == pytest.approx(value)
    assert metrics["q/conservative"].item() == pytest.approx(conservative)
    assert metrics["imitation/loss"].item() == pytest.approx(imitation)
    assert loss.item() == pytest.approx(difference + value + 0.1 * conservative + 2 * imitation)


def test_the_observed_return_can_stand_in_for_the_next_states_value():
    (row,) = ILQL(monte_carlo=0.25, discount=0.5).rows(example(1.0), Letters())
    assert row.fields["return"].tolist() == [0.25, 0.5, 1.0]
    batch, fields = lay_out([(row,)])
    outputs = Table().outputs(batch)
    metrics = [ILQL(monte_carlo=m, discount=0.5).loss()(outputs, fields, batch, count([(row,)]))[1] for m in (0.0, 0.25)]
    following = torch.cat([outputs["q/state_value"][1:], torch.zeros(1)])
    backup = fields["step_reward"] + 0.5 * following
    mixed = 0.75 * backup + 0.25 * fields["return"]
    for wanted, found in zip((backup, mixed), metrics, strict=True):
        assert found["q/loss"].item() == pytest.approx((outputs["q"] - wanted[:, None]).square().sum(-1).mean().item())


def test_imitation_is_weighted_by_the_advantage():
    _, metrics = by_hand(imitation_beta=2.0)
    assert metrics["imitation/loss"].item() == pytest.approx((math.exp(1.0) * 1 + math.exp(-1.0) * 2) / 2)


def test_the_two_heads_targets_count_by_their_minimum():
    # With the larger (7 and 0.6) the value loss would be more than twenty times as much.
    _, metrics = by_hand(expectile=0.5)
    assert metrics["value/loss"].item() == pytest.approx(0.5 * (0.25 + 0.25) / 2)


def test_the_loss_names_the_outputs_it_reads():
    assert ILQL().loss().needs == {"logp", "q"}
