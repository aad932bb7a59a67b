"""A vocabulary cut by rows: who holds which, and where a token is found."""

import pytest
import torch

from penstock.core.errors import ModelError
from penstock.models.outputs import WholeVocabulary
from penstock.train import vocabulary
from penstock.train.vocabulary import Rows, SplitHead


def test_ranks_hold_equal_numbers_of_rows_but_for_the_last():
    assert [(rows.start, rows.count) for rows in (Rows.of(7, rank, 3) for rank in range(3))] == [(0, 3), (3, 3), (6, 1)]


def test_a_token_is_found_on_one_rank():
    row, here = Rows.of(7, 1, 3).local(torch.tensor([2, 3, 5, 6]))
    assert row.tolist() == [0, 0, 2, 0]
    assert here.tolist() == [False, True, True, False]


def test_a_rank_without_rows_is_refused():
    with pytest.raises(ModelError, match=r"strategy.tensor_parallel=4 leaves a rank without rows of 5 tokens"):
        Rows.of(5, 0, 4)


def test_a_split_vocabulary_counts_a_token_that_cannot_come_as_nothing(monkeypatch):
    """One rank of one: what is summed over ranks is its own."""
    for name in ("summed", "common"):
        monkeypatch.setattr(vocabulary, name, lambda tensor, group: tensor)
    monkeypatch.setattr(vocabulary.distributed, "all_reduce", lambda *arguments: None)
    head = object.__new__(SplitHead)
    head.group, head.rows = None, Rows(0, 3)
    logits = torch.tensor([[-torch.inf, 0.0, 1.0]], dtype=torch.float64, requires_grad=True)
    logp, entropy = head.scores(logits, torch.tensor([2]), True)
    assert (logp.item(), entropy.item()) == (pytest.approx(-0.313262, abs=1e-6), pytest.approx(0.582203, abs=1e-6))
    (gradient,) = torch.autograd.grad(entropy.sum(), logits)
    whole = logits.detach()[:, 1:].requires_grad_()
    (expected,) = torch.autograd.grad(WholeVocabulary.scores(whole, torch.tensor([1]), True)[1].sum(), whole)
    torch.testing.assert_close(gradient, torch.cat([torch.zeros(1, 1).double(), expected], 1))
    head.rows = Rows(3, 3)  # the token is another rank's, and this one's first row cannot come: it adds 0 to the log-prob
    assert head.scores(logits, torch.tensor([2]), False)[0].item() == pytest.approx(-1.313262, abs=1e-6)
