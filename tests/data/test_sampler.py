"""Draws are a pure function of seed, epoch and ordinal."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.config.run import DataSpec
from penstock.core.contracts import PromptSource
from penstock.core.errors import DataError
from penstock.core.types import PromptKey
from penstock.data.resolve import register
from penstock.data.rows import Rows
from penstock.data.sampler import Sampler, examples, order, pairs, permuted, prompts

SIZES = st.integers(1, 50)
SEEDS = st.integers(0, 2**70)


def indices(size, seed, shuffle=True):
    return Sampler(Rows("s", [{}] * size), seed, lambda key, row, index: (key, index), shuffle)


@given(SIZES, SEEDS, st.integers(0, 10))
def test_every_row_comes_once_an_epoch(size, seed, epoch):
    drawn = [indices(size, seed)(epoch * size + place)[1] for place in range(size)]
    assert sorted(drawn) == list(range(size))


@given(SIZES, SEEDS, st.randoms(use_true_random=False))
def test_draws_do_not_depend_on_what_was_drawn_before(size, seed, shuffler):
    ordinals = list(range(3 * size))
    in_order = {ordinal: indices(size, seed)(ordinal) for ordinal in ordinals}
    shuffler.shuffle(ordinals)
    sampler = indices(size, seed)
    order.cache_clear()
    assert all(sampler(ordinal) == in_order[ordinal] for ordinal in ordinals)


@given(SIZES, st.integers(0, 1000))
def test_keys_count_within_their_epoch(size, ordinal):
    assert indices(size, 0)(ordinal)[0] == PromptKey("s", ordinal // size, ordinal % size)


def test_epochs_and_seeds_have_orders_of_their_own():
    orders = {tuple(order(seed, epoch, 100)) for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25


def test_orders_stay_the_same_between_releases():
    assert order(7, 3, 8).tolist() == [2, 5, 7, 3, 0, 6, 4, 1]


def test_orders_are_even():
    """Each row stands at each place about as often; a bound of five standard deviations."""
    counts = np.zeros((5, 5))
    for epoch in range(2000):
        counts[np.arange(5), order(0, epoch, 5)] += 1
    assert np.abs(counts - 400).max() < 5 * np.sqrt(2000 * 0.2 * 0.8)


def test_without_shuffling_rows_come_in_file_order():
    assert [indices(3, 0, shuffle=False)(ordinal)[1] for ordinal in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_a_cached_order_cannot_be_changed():
    with pytest.raises(ValueError, match="read-only"):
        order(0, 0, 5)[0] = 1


@pytest.mark.parametrize(("size", "ordinal", "message"), [(3, -1, "negative"), (0, 0, "no rows")])
def test_a_negative_draw_and_an_empty_source_are_refused(size, ordinal, message):
    with pytest.raises(DataError, match=message):
        indices(size, 0)(ordinal)


def rows():
    return [{"prompt": f"p{n}", "completion": f"c{n}", "chosen": f"good{n}", "rejected": f"bad{n}"} for n in range(5)]


def test_a_data_spec_becomes_prompts(tmp_path):
    sampler = prompts(DataSpec(source=register(rows), shuffle=False), tmp_path, seed=0)
    drawn = sampler(6)
    assert (drawn.key, drawn.text, drawn.columns) == (PromptKey("rows", 1, 1), "p1", rows()[1])
    assert len(sampler) == 5
    source: PromptSource = sampler
    assert source(0).text == "p0"


def test_a_data_spec_becomes_examples_and_pairs(tmp_path):
    spec = DataSpec(source=register(rows))
    example = examples(spec, tmp_path, seed=random.Random(0).randrange(100))(0)
    pair = pairs(spec, tmp_path, seed=1)(3)
    assert example.prompt.text[1:] == example.answers["completion"]["content"][1:]
    said = {name: answer["content"] for name, answer in pair.answers.items()}
    assert said == {"chosen": f"good{pair.prompt.text[1:]}", "rejected": f"bad{pair.prompt.text[1:]}"}


@pytest.mark.parametrize("size", [1, 2, 5, 16, 17, 1000])
def test_a_permutation_without_memory_holds_every_place_once(size):
    assert sorted(permuted(place, 3, 1, size) for place in range(size)) == list(range(size))


def test_places_of_other_seeds_and_epochs_are_others():
    orders = {tuple(permuted(place, seed, epoch, 50) for place in range(50)) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9
