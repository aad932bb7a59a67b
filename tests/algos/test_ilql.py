"""ILQL: rows from rewards, the loss by hand, and that no split, order or padding of rows changes it."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from algo_examples import VOCABULARY, Letters, count, lay_out
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.algos import ILQL
from penstock.config.spec import parse, plain
from penstock.core.contracts import Denominator
from penstock.core.errors import DataError, SpecError


class QTable:
    """Logits, two Q heads, their targets and a state value, each a table over the token before the action."""

    def __init__(self, seed=0):
        generator = torch.Generator().manual_seed(seed)

        def table(*shape):
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        self.logits = table(VOCABULARY, VOCABULARY).requires_grad_()
        self.q = table(2, VOCABULARY, VOCABULARY).requires_grad_()
        self.target = table(2, VOCABULARY, VOCABULARY)
        self.value = table(VOCABULARY).requires_grad_()

    def outputs(self, batch):
        before, chosen = batch.before_A, batch.target_A
        return {
            "logp": self.logits.log_softmax(-1)[before, chosen],
            "q": self.q[:, before, chosen].T,
            "q/logsumexp": self.q[:, before].logsumexp(-1).T,
            "q/target": self.target[:, before, chosen].T,
            "q/state_value": self.value[before],
        }

    def accumulate(self, loss, micro_batches, denominator, order=None):
        parts = (self.logits, self.q, self.value)
        for part in parts:
            part.grad = None
        total = 0.0
        for units in micro_batches:
            batch, fields = lay_out(units, order)
            share, _ = loss(self.outputs(batch), fields, batch, denominator)
            share.backward()
            total += share.item()
        return total, torch.cat([part.grad.flatten() for part in parts])


def units_of(algorithm, seed=0, size=5):
    rng = np.random.default_rng(seed)

    def text():
        return "".join(rng.choice(list("abcde"), rng.integers(1, 5)))

    examples = [{"prompt": text(), "completion": text(), "reward": float(rng.normal())} for _ in range(size)]
    return [algorithm.rows(example, Letters()) for example in examples]


def example(reward, completion="bc"):
    return {"prompt": "a", "completion": completion, "reward": reward}


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


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"expectile": 1.0}, "expectile"),
        ({"monte_carlo": 2.0}, "monte_carlo=2.0 must be from 0 to 1"),
        ({"discount": 1.1}, "discount"),
        ({"conservative": -0.1}, "conservative"),
        ({"target_rate": 0.0}, "target_rate"),
        ({"target_every": 0}, "target_every"),
    ],
)
def test_impossible_fields_are_refused(fields, problem):
    with pytest.raises(SpecError, match=problem):
        ILQL(**fields)


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
    (row,) = ILQL(monte_carlo=0.25, discount=0.5).rows({"prompt": "a", "completion": "bc", "reward": 1.0}, Letters())
    assert row.fields["return"].tolist() == [0.25, 0.5, 1.0]
    table = QTable()
    batch, fields = lay_out([(row,)])
    outputs = table.outputs(batch)
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


ALGORITHM = ILQL(imitation_beta=0.5, expectile=0.8)


@settings(max_examples=15)
@given(seed=st.integers(0, 1000), cuts=st.sets(st.integers(1, 4)))
def test_any_split_into_micro_batches_or_ranks_gives_the_same_loss_and_gradient(seed, cuts):
    units, model = units_of(ALGORITHM, seed), QTable(seed)
    pieces = [units[a:b] for a, b in pairwise([0, *sorted(cuts), len(units)])]
    whole, whole_grad = model.accumulate(ALGORITHM.loss(), [units], count(units))
    total, grad = model.accumulate(ALGORITHM.loss(), pieces, count(units))
    assert total == pytest.approx(whole, abs=1e-6)
    torch.testing.assert_close(grad, whole_grad, atol=1e-6, rtol=1e-6)


@settings(max_examples=10)
@given(order=st.permutations(range(5)))
def test_the_order_of_rows_does_not_matter(order):
    units, model = units_of(ALGORITHM), QTable()
    whole, whole_grad = model.accumulate(ALGORITHM.loss(), [units], count(units))
    total, grad = model.accumulate(ALGORITHM.loss(), [units], count(units), order)
    assert total == pytest.approx(whole, abs=1e-9)
    torch.testing.assert_close(grad, whole_grad, atol=1e-9, rtol=1e-9)


def test_the_spec_survives_the_journey_as_plain_values():
    assert parse(ILQL, plain(ALGORITHM)) == ALGORITHM


def test_the_loss_names_the_outputs_it_reads():
    assert ILQL().loss().needs == {"logp", "q"}
