"""The tokens of a micro-batch split over ranks: who holds what, which heads go where, and what is refused."""

from types import SimpleNamespace

import pytest
import torch

from penstock.config.strategies import FSDP2
from penstock.core.errors import ModelError
from penstock.train.sequence import Sequence, check_rotary, copies_of_keys
from penstock.train.tensor_parallel import check_plan

BATCH = SimpleNamespace(
    plan=SimpleNamespace(longest=5),
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


@pytest.mark.parametrize("settings", [{"rope_type": "dynamic"}, {"full_attention": {"rope_type": "dynamic"}}], ids=str)
def test_a_rotary_embedding_that_needs_the_longest_position_is_refused(settings):
    config = SimpleNamespace(rope_parameters=settings)
    with pytest.raises(ModelError, match="type dynamic changes"):
        check_rotary(config, 2)
