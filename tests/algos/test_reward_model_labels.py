"""Reward models from pairs with a margin or a probability of their own."""

import math

import numpy as np
import pytest
from algo_examples import Letters, evaluated

from penstock.algos import BradleyTerry
from penstock.core.errors import DataError

TOKENIZER = Letters()
PAIR = {"prompt": "a", "chosen": "bc", "rejected": "d", "gap": 1.5, "share": 0.75}


def loss_of(algorithm, examples, order, score):
    units = [algorithm.rows(example, TOKENIZER) for example in examples]
    return evaluated(algorithm, units, order, score=np.array(score)[order])[0].item()


LOG3 = math.log(3)


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 0, 2, 1]])
@pytest.mark.parametrize(
    ("algorithm", "second", "score", "expected"),
    [
        (BradleyTerry(margin="gap"), {"gap": 0}, [1.5, 0.0, LOG3, 0.0], math.log(2) + math.log(4 / 3)),
        (
            BradleyTerry(probability="share"),
            {"share": 1},
            [LOG3, 0.0, 0.0, 0.0],
            0.75 * math.log(4 / 3) + 0.25 * math.log(4) + math.log(2),
        ),
    ],
    ids=["margin", "probability"],
)
def test_each_pair_has_the_number_of_its_column(algorithm, second, score, expected, order):
    assert loss_of(algorithm, [PAIR, PAIR | second], order, score) == pytest.approx(expected / 2)


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
    found = loss_of(BradleyTerry(margin="gap", probability="share"), [PAIR | {"gap": 0.5}], [0, 1], [2.0, 0.5])
    # d = 2 - 0.5 - 0.5 = 1: -0.75 log σ(1) - 0.25 log σ(-1)
    assert found == pytest.approx(0.75 * math.log1p(math.exp(-1)) + 0.25 * math.log1p(math.exp(1)))
