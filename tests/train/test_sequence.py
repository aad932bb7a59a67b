"""The tokens of a micro-batch split over ranks: who holds what, which heads go where, and what is refused."""

import threading
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional

from penstock.config.strategies import FSDP2
from penstock.core.errors import ModelError
from penstock.models.attention import LayerAttention, single_row_plan
from penstock.train.fsdp import check_plan
from penstock.train.sequence import Sequence, SplitPlan, copies_of_keys

BATCH = SimpleNamespace(
    plan=SimpleNamespace(),
    tokens_N=torch.tensor([10, 11, 12, 13, 14]),
    position_N=torch.tensor([0, 1, 2, 0, 1]),
    source_A=torch.tensor([0, 1, 3]),
    target_A=torch.tensor([11, 12, 14]),
    last_B=torch.tensor([2, 4]),
)
"""Rows 10 11 12 and 13 14 whose first token alone is no action."""


def part(rank):
    return Sequence(None, rank, 2).split(BATCH)


def test_ranks_take_tokens_in_turn_and_the_last_may_get_padding():
    assert part(0).tensors.tokens_N.tolist() == [10, 12, 14]
    assert part(1).tensors.tokens_N.tolist() == [11, 13, 0]
    assert part(1).tensors.position_N.tolist() == [1, 0, 0]


def test_an_action_is_scored_where_the_token_before_it_is_held():
    zero, one = part(0), part(1)
    assert (zero.action.tolist(), zero.tensors.source_A.tolist(), zero.tensors.target_A.tolist()) == ([0], [0], [11])
    assert (one.action.tolist(), one.tensors.source_A.tolist(), one.tensors.target_A.tolist()) == ([1, 2], [0, 1], [12, 14])


def test_a_row_is_scored_where_its_last_token_is_held():
    zero, one = part(0), part(1)
    assert (zero.row.tolist(), zero.tensors.last_B.tolist()) == ([0, 1], [1, 2])
    assert (one.row.tolist(), one.tensors.last_B.tolist()) == ([], [])


@pytest.mark.parametrize(
    ("heads", "keys", "ranks", "copies"),
    [(8, 8, 4, 1), (8, 2, 2, 1), (8, 2, 4, 2), (8, 1, 8, 8), (12, 4, 6, 3)],
)
def test_key_value_heads_are_repeated_only_where_ranks_do_not_divide_them(heads, keys, ranks, copies):
    assert copies_of_keys(heads, keys, ranks) == copies


def test_heads_that_the_ranks_do_not_divide_are_refused_with_what_fits():
    config = SimpleNamespace(num_attention_heads=4, vocab_size=64, model_type="llama")
    with pytest.raises(
        ModelError, match=r"sequence_parallel=3 does not divide the model's 4 attention heads; set one of 1, 2, 4"
    ):
        check_plan(config, FSDP2(ranks=3, sequence_parallel=3))
    with pytest.raises(ModelError, match=r"2 attention heads after strategy.tensor_parallel=2; set one of 1, 2"):
        check_plan(config, FSDP2(ranks=8, sequence_parallel=4, tensor_parallel=2))


class Together:
    """Two ranks in threads: what a collective exchanges, without processes."""

    def __init__(self, ranks):
        self.barrier, self.given = threading.Barrier(ranks), {}

    def exchange(self, parts, rank):
        self.given[rank] = parts
        self.barrier.wait(timeout=20)
        found = torch.stack([self.given[other][rank] for other in range(len(self.given))])
        self.barrier.wait(timeout=20)
        return found


ALL = LayerAttention(0.4, window=3, cap=2.0, sink_H=torch.arange(4.0))


@pytest.mark.parametrize("how", [LayerAttention(0.4), ALL], ids=["plain", "all"])
def test_split_attention_equals_whole_attention_with_windows_caps_and_sinks(how, monkeypatch):
    together, generator, count = Together(2), torch.Generator().manual_seed(0), 7
    monkeypatch.setattr("penstock.train.sequence.exchanged", lambda parts, rank: together.exchange(parts, rank))
    whole = [torch.randn(1, heads, count, 8, generator=generator) for heads in (4, 2, 2)]
    plan, found = single_row_plan(count), {}

    def attend(rank):
        own = [functional.pad(state, (0, 0, 0, 1))[:, :, rank::2] for state in whole]
        found[rank] = SplitPlan(plan, count, Sequence(rank, rank, 2)).attend(*own, how)

    threads = [threading.Thread(target=attend, args=(rank,)) for rank in range(2)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    joined = torch.stack([found[0][0], found[1][0]], 1).flatten(0, 1)[:count]
    torch.testing.assert_close(joined, plan.attend(*whole, how)[0])


def test_keys_and_values_of_different_widths_are_refused():
    states = [torch.zeros(1, 4, 2, width) for width in (8, 8, 6)]
    with pytest.raises(ModelError, match="sequence_parallel=2: keys and values differ in width"):
        SplitPlan(single_row_plan(4), 4, Sequence(None, 0, 2)).attend(*states, LayerAttention())
