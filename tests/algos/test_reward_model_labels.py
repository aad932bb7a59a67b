"""Reward models from pairs with a margin or a probability of their own."""

import math

import pytest
import torch
from algo_examples import Letters, Table, count, lay_out

from penstock.algos import BradleyTerry
from penstock.config.spec import parse, plain
from penstock.core.errors import DataError

TOKENIZER = Letters()
PAIR = {"prompt": "a", "chosen": "bc", "rejected": "d", "gap": 1.5, "share": 0.75}


def loss_of(algorithm, examples, order, score):
    units = [algorithm.rows(example, TOKENIZER) for example in examples]
    batch, fields = lay_out(units, order)
    outputs = {"score": torch.tensor(score, dtype=torch.float64)[order]}
    return algorithm.loss()(outputs, fields, batch, count(units))[0].item()


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 0, 2, 1]])
def test_each_pair_has_the_margin_of_its_column(order):
    found = loss_of(BradleyTerry(margin="gap"), [PAIR, PAIR | {"gap": 0}], order, [1.5, 0.0, math.log(3), 0.0])
    assert found == pytest.approx((math.log(2) + math.log(4 / 3)) / 2)


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 0, 2, 1]])
def test_each_pair_has_the_probability_of_its_column(order):
    found = loss_of(BradleyTerry(probability="share"), [PAIR, PAIR | {"share": 1}], order, [math.log(3), 0.0, 0.0, 0.0])
    assert found == pytest.approx((0.75 * math.log(4 / 3) + 0.25 * math.log(4) + math.log(2)) / 2)


@pytest.mark.parametrize(
    ("algorithm", "column", "value"),
    [
        (BradleyTerry(margin="gap"), "gap", -1),
        (BradleyTerry(margin="gap"), "gap", None),
        (BradleyTerry(margin="gap"), "gap", float("nan")),
        (BradleyTerry(probability="share"), "share", 1.5),
        (BradleyTerry(probability="share"), "share", True),
    ],
)
def test_a_column_that_holds_no_such_number_is_named(algorithm, column, value):
    with pytest.raises(DataError, match=f'column "{column}".*got'):
        algorithm.rows(PAIR | {column: value}, TOKENIZER)


def test_the_probability_of_a_pair_with_a_margin_is_that_of_winning_by_the_margin():
    algorithm = BradleyTerry(margin="gap", probability="share")
    example = {"prompt": "a", "chosen": "b", "rejected": "c", "gap": 0.5, "share": 0.75}
    units = [algorithm.rows(example, TOKENIZER)]
    batch, fields = lay_out(units)
    loss, _ = algorithm.loss()({"score": torch.tensor([2.0, 0.5]).double()}, fields, batch, count(units))
    # d = 2 - 0.5 - 0.5 = 1: -0.75 log σ(1) - 0.25 log σ(-1)
    assert loss.item() == pytest.approx(0.75 * math.log1p(math.exp(-1)) + 0.25 * math.log1p(math.exp(1)))


@pytest.mark.parametrize("algorithm", [BradleyTerry(margin="gap"), BradleyTerry(margin=0.5), BradleyTerry(probability="share")])
def test_a_spec_survives_the_journey_as_plain_values(algorithm):
    assert parse(BradleyTerry, plain(algorithm)) == algorithm


def test_soft_labels_split_into_micro_batches_add_up():
    algorithm, model = BradleyTerry(probability="share", centring=0.1), Table()
    letters = ["b", "c", "de"]
    units = [algorithm.rows(PAIR | {"chosen": a, "share": i / 3}, TOKENIZER) for i, a in enumerate(letters)]
    whole, _, whole_grad = model.accumulate(algorithm.loss(), [units], count(units))
    total, _, grad = model.accumulate(algorithm.loss(), [units[:1], units[1:]], count(units))
    assert total == pytest.approx(whole)
    torch.testing.assert_close(grad, whole_grad)
