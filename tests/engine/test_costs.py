"""Work that grows with nothing but what it must: counted, because no clock on a shared machine would tell."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine_examples import assert_same_draws, drawn, run
from penstock.engine.cache import CachePool
from penstock.engine.generator import EmbeddedGenerator
from penstock.engine.sequences import Before
from penstock.engine.turn import moves
from penstock.models.attention import bucket_by_length
from penstock.models.unfold import WINDOW, Unfolding
from tiny_models import request


class CountingText:
    """A text that counts what is decoded."""

    def __init__(self, text):
        self._text, self.decodings = text, []

    def __getattr__(self, name):
        return getattr(self._text, name)

    def decode(self, tokens):
        tokens = list(tokens)
        self.decodings.append(len(tokens))
        return self._text.decode(tokens)


def test_stop_strings_decode_a_window_a_token_and_the_answer_once(tiny):
    model = tiny()
    model.text = CountingText(model.text)
    (sample,) = run(EmbeddedGenerator(model), [request(np.array([20]), max_new_tokens=100, stop=("never in a text",))])
    assert len(drawn(sample)) == 100
    assert len(model.text.decodings) <= 100 * 1.5 + 1
    assert sum(model.text.decodings) <= 100 * WINDOW + 100
    assert max(model.text.decodings[:-1]) <= 2 * WINDOW


@given(st.lists(st.integers(3, 290), max_size=60), st.text(max_size=3), st.integers(0, 60))
def test_a_stop_string_is_seen_with_the_token_that_completes_it(text, tokens, stop, cut):
    """The same token as by decoding everything each time, whatever bytes its pieces break off in."""
    whole = text.decode(tokens)
    stop = stop or whole[cut : cut + 3]
    if not stop or "\ufffd" in stop:
        return
    unfolding, found = Unfolding(text, (stop,)), None
    for count, token in enumerate(tokens, 1):
        unfolding.add([token])
        if found is None and unfolding.stopped:
            found = count
    assert found == next((n for n in range(1, len(tokens) + 1) if stop in text.decode(tokens[:n])), None)


@pytest.fixture
def copies(monkeypatch):
    """Row copies so far: (pool, source, target)."""
    found, copy = [], CachePool.copy

    def counted(pool, source, target, length):
        found.append((id(pool), source, target))
        copy(pool, source, target, length)

    monkeypatch.setattr(CachePool, "copy", counted)
    return found


def test_a_sample_that_ends_moves_one_row_and_one_prefix_at_most(tiny, copies):
    rng = np.random.default_rng(0)
    requests = [request(rng.integers(10, 290, 4), p, max_new_tokens=int(rng.integers(1, 30))) for p in range(24)]
    generator = EmbeddedGenerator(tiny(), max_running=24)
    found = run(generator, requests)
    assert len(copies) <= 2 * len(found)
    assert_same_draws(found, [run(generator, [one])[0] for one in requests])


def test_samples_that_end_together_move_no_row_twice(tiny, copies):
    requests = [request(np.array([20 + p]), p, max_new_tokens=3 if p % 2 else 9) for p in range(16)]
    run(EmbeddedGenerator(tiny(), max_running=16), requests)
    assert len(copies) == 2 * 4  # of 16 rows 8 end, 4 of them among the first 8; then the last 8 end together


@given(st.integers(1, 40).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1)))))
def test_moves_leave_no_gap(case):
    count, free = case
    rows = list(range(count))
    found = moves(sorted(free), count)
    for source, target in found:
        assert target in free
        rows[target] = source
    left = rows[: count - len(free)]
    assert sorted(left) == [row for row in range(count) if row not in free]
    assert len(found) <= len(free)


def test_nothing_is_looked_up_with_nobody_waiting_and_a_request_is_read_once(tiny, monkeypatch):
    made = []
    plain = Before.__init__

    def counted(self, tokens):
        made.append(len(tokens))
        plain(self, tokens)

    monkeypatch.setattr(Before, "__init__", counted)
    generator = EmbeddedGenerator(tiny(), max_running=2)
    run(generator, [request(np.array([20 + p]), p, max_new_tokens=20) for p in range(6)])
    assert len(made) == 6
    monkeypatch.setattr(generator, "_most_rows", None)  # would be called to admit somebody
    generator._admit()


def slow_buckets(queries_B, keys_B, waste):
    """What buckets are, row by row and each time anew."""
    buckets, area = [], 0.0
    for row in np.lexsort((-keys_B, -queries_B)):
        own = float(queries_B[row] * keys_B[row])
        if buckets:
            members = [*buckets[-1], int(row)]
            if area + own >= (1 - waste) * len(members) * queries_B[members].max() * keys_B[members].max():
                buckets[-1].append(int(row))
                area += own
                continue
        buckets.append([int(row)])
        area = own
    return buckets


@given(st.lists(st.tuples(st.integers(1, 90), st.integers(0, 60)), min_size=1, max_size=50), st.sampled_from([0.15, 0.5]))
def test_buckets_are_those_of_the_slow_way(runs, waste):
    queries = np.array([asked for asked, _ in runs])
    keys = queries + np.array([before for _, before in runs])
    found = bucket_by_length(queries, keys, waste)
    assert [members.tolist() for members in found] == slow_buckets(queries, keys, waste)


def test_a_thousand_rows_are_bucketed_in_one_pass():
    """4 ms; 33 ms and growing with the square when each row looked at its whole bucket again."""
    lengths = np.random.default_rng(0).integers(1, 400, 4096)

    class Counted(np.ndarray):
        reads = 0

        def __getitem__(self, index):
            Counted.reads += np.size(index) if not np.isscalar(index) else 1
            return super().__getitem__(index)

    found = bucket_by_length(lengths.view(Counted), lengths.view(Counted), 0.15)
    assert sum(map(len, found)) == 4096
    assert Counted.reads <= 4 * 4096


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_temperature_may_be_an_int(temperature, tiny):
    requests = [request(np.array([20]), temperature=kind(temperature)) for kind in (int, float)]
    assert_same_draws(*(run(EmbeddedGenerator(tiny()), [wanted]) for wanted in requests))


def test_an_int_beside_a_float_in_one_batch(tiny):
    wanted = [request(np.array([20]), 0, temperature=1), request(np.array([21]), 1, temperature=0.5)]
    assert [len(drawn(sample)) for sample in run(EmbeddedGenerator(tiny()), wanted)] == [12, 12]


def test_a_prompt_that_is_read_whole_needs_no_mask(tiny, monkeypatch):
    """Attention without a mask skips what no query sees: about a third of the time at 2,048 tokens."""
    masks, plain = [], torch.nn.functional.scaled_dot_product_attention

    def noted(query, key, value, attn_mask=None, is_causal=False, **more):
        masks.append((attn_mask is not None, is_causal))
        return plain(query, key, value, attn_mask, is_causal=is_causal, **more)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", noted)
    generator = EmbeddedGenerator(tiny(), chunk=64)
    run(generator, [request(np.full(n, 20), n, max_new_tokens=1) for n in (5, 17, 30)])
    assert set(masks) == {(False, True)}
    masks.clear()
    run(generator, [request(np.full(90, 20), 0, max_new_tokens=1)])
    assert set(masks) == {(False, True), (True, False)}  # the second chunk sees the first
