"""A vocabulary cut by rows: who holds which, and where a token is found."""

import pytest
import torch

from penstock.core.errors import ModelError
from penstock.train.vocabulary import Rows


def test_ranks_hold_equal_numbers_of_rows_but_for_the_last():
    assert [(rows.start, rows.count) for rows in (Rows.of(7, rank, 3) for rank in range(3))] == [(0, 3), (3, 3), (6, 1)]


def test_a_token_is_found_on_one_rank():
    row, here = Rows.of(7, 1, 3).local(torch.tensor([2, 3, 5, 6]))
    assert row.tolist() == [0, 0, 2, 0]
    assert here.tolist() == [False, True, True, False]


def test_a_rank_without_rows_is_refused():
    with pytest.raises(ModelError, match=r"strategy.tensor_parallel=4 leaves a rank without rows of 5 tokens"):
        Rows.of(5, 0, 4)
