"""Which of the ready groups make up a batch, on cases made by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stream_examples import generated, scored

from penstock.core.errors import StreamError
from penstock.stream.entry import Entry, Ticket
from penstock.stream.gate import Gate
from penstock.stream.lag import token_versions
from penstock.stream.rules import BATCH_SELECTORS, Rules, balanced, fifo, priority


def ready_of(*groups):
    """Entries of finished groups."""
    return [Entry(Ticket(index), group=one, versions=token_versions(one)) for index, one in enumerate(groups)]


def of_lengths(*lengths):
    return ready_of(*(generated(ordinal, [0] * length) for ordinal, length in enumerate(lengths)))


def test_fifo_takes_the_first():
    assert fifo(of_lengths(1, 2, 3), 2) == [0, 1]


def test_balanced_takes_short_and_long_ones_together():
    """Ordered by length the places are 4 3 5 1 0 2; the middles of two equal parts are the second and the fifth."""
    assert balanced(of_lengths(5, 4, 6, 2, 1, 3), 2) == [0, 3]


def test_balanced_gives_batches_of_like_cost_where_fifo_does_not():
    ready = of_lengths(1, 1, 9, 9)
    assert [ready[index].versions.tokens for index in balanced(ready, 2)] == [1, 9]
    assert [ready[index].versions.tokens for index in fifo(ready, 2)] == [1, 1]


def test_balanced_counts_the_actions_of_all_samples_of_a_group():
    ready = ready_of(generated(0, [0], [0] * 7), generated(1, [0, 0]), generated(2, [0] * 4))
    assert balanced(ready, 1) == [2]


def test_priority_takes_the_oldest_tokens_first():
    ready = ready_of(*(scored(generated(0, [version, 5]), 1.0) for version in (4, 2, 3)))
    assert priority(ready, 2) == [1, 2]


def test_priority_takes_the_widest_spread_of_rewards_among_the_equally_old():
    ready = ready_of(*(scored(generated(0, [1], [1]), *rewards) for rewards in ((1.0, 1.0), (0.0, 1.0), (0.0, 5.0))))
    assert priority(ready, 1) == [2]
    assert priority(ready, 2) == [1, 2]


def test_priority_leaves_out_failed_samples():
    """Without the failed one no spread is left, so that the other group comes first."""
    wide = scored(generated(0, [1], [1]), 0.0, 9.0)
    broken = type(wide)(wide.prompt, (wide.samples[0], wide.samples[1].failed("reward")))
    assert priority(ready_of(broken, scored(generated(1, [1], [1]), 0.0, 1.0)), 1) == [1]


@given(st.lists(st.integers(1, 6), min_size=1, max_size=12), st.data())
def test_every_selector_gives_different_places_of_what_is_ready(lengths, data):
    count = data.draw(st.integers(1, len(lengths)))
    for selector in BATCH_SELECTORS.values():
        places = selector(of_lengths(*lengths), count)
        assert len(set(places)) == len(places) == count
        assert set(places) <= set(range(len(lengths)))


def test_the_gate_leases_what_its_selector_chose():
    gate = Gate(Rules(2, max_lag=1, on_stale="drop", batch_selector="balanced"))
    for ticket, length in zip(gate.admit("g", 4), (1, 1, 9, 9), strict=True):
        gate.put("g", ticket, generated(ticket.ordinal, [0] * length))
    assert gate.lease(0).ordinals == (1, 3)


def test_an_unknown_selector_is_refused_with_those_there_are():
    with pytest.raises(StreamError, match='no batch selector "longest"; there are fifo, balanced, priority'):
        Rules(2, on_stale="drop", batch_selector="longest")
