"""Dynamic sampling: groups without signal are filtered, in the order of ordinals, once each, and within a limit."""

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stream_examples import Both, group

from penstock.core.errors import StreamError
from penstock.stream.rules import Rules


def stream_of(batch, flat, *, max_lag=0, dynamic_sampling=100):
    """A stream that filters the ordinals in ``flat``."""
    return Both(Rules(batch, max_lag, keep=lambda group: group.key.ordinal not in flat, dynamic_sampling=dynamic_sampling))


async def roll(stream, seed=0):
    """Deliver a group for every slot, for ever, in an order that depends on ``seed``."""
    waiting = []
    while True:
        if stream.gate.may_admit("g"):
            waiting += await stream.admit(most=stream.rules.slots)
        if waiting:
            ticket = waiting.pop((seed * 7919 + len(waiting)) % len(waiting))
            await stream.put(ticket, group(ticket.ordinal, stream.stats.trained // stream.rules.batch))
        await asyncio.sleep(0)


async def train(stream, batches, seed=0, start=0):
    """Leases of so many batches."""
    roller = asyncio.create_task(roll(stream, seed))
    leases = []
    try:
        for version in range(start, start + batches):
            leases.append(await stream.train(version))
    finally:
        roller.cancel()
    return leases


def test_a_batch_is_filled_up_with_the_next_prompts():
    (lease,) = asyncio.run(train(stream_of(3, flat={0, 2, 4}), 1))
    assert lease.ordinals == (1, 3, 5)
    assert lease.filtered == (0, 2, 4)


@given(st.sets(st.integers(0, 30)), st.integers(1, 4), st.integers(0, 50))
def test_without_lag_batches_are_the_first_groups_with_signal_whatever_the_order_of_arrival(flat, batch, seed):
    leases = asyncio.run(train(stream_of(batch, flat), 5, seed))
    telling = [ordinal for ordinal in range(100) if ordinal not in flat][: 5 * batch]
    assert [ordinal for lease in leases for ordinal in lease.ordinals] == telling
    gone = sorted(ordinal for lease in leases for ordinal in lease.ordinals + lease.filtered)
    assert gone == list(range(telling[-1] + 1))


@given(st.sets(st.integers(0, 20)), st.integers(1, 3), st.integers(1, 4))
def test_a_resume_goes_on_with_the_ordinal_after_the_last_that_was_consumed(flat, batch, stop):
    whole = asyncio.run(train(stream_of(batch, flat), 5))
    first = stream_of(batch, flat)
    begun = asyncio.run(train(first, stop))
    second = Both(first.rules, kept=first.learner.ledger)
    rest = asyncio.run(train(second, 5 - stop))
    assert [(lease.ordinals, lease.filtered) for lease in begun + rest] == [(lease.ordinals, lease.filtered) for lease in whole]


def test_too_many_groups_without_signal_end_the_run_with_the_reason():
    stream = stream_of(2, flat=set(range(1000)), dynamic_sampling=3)
    with pytest.raises(StreamError, match=r"8 groups without signal .*more than dynamic_sampling=3 .*all rewards were 1"):
        asyncio.run(train(stream, 1))
    assert stream.stats.admitted == 8


async def test_failures_are_named_when_nothing_else_was_to_be_learned():
    stream = Both(Rules(1, keep=lambda group: False, dynamic_sampling=1))
    for _ in range(2):
        (ticket,) = await stream.admit()
        made = group(ticket.ordinal)
        await stream.put(ticket, replace(made, samples=(made.samples[0].failed('reward "math" timed out'),)))
    with pytest.raises(StreamError, match='1 of 1 samples failed: reward "math" timed out'):
        await stream.lease(0)


def test_a_batch_that_cannot_get_complete_any_more_ends_the_run_at_once():
    """One of the two slots is closed by a filtered group, so that the good one waits for a second in vain."""
    stream = stream_of(2, flat={0}, dynamic_sampling=0)
    with pytest.raises(StreamError, match=r"1 groups without signal .*more than dynamic_sampling=0"):
        asyncio.run(train(stream, 1))


def test_a_limit_that_was_reached_is_lifted_by_the_next_batch():
    (first, second) = asyncio.run(train(stream_of(2, flat={0, 1, 4, 5}, dynamic_sampling=1), 2))
    assert (first.ordinals, second.ordinals) == ((2, 3), (6, 7))


async def test_the_filtered_groups_of_a_returned_lease_are_not_generated_again():
    stream = stream_of(1, flat={0})
    roller = asyncio.create_task(roll(stream))
    before = stream.learner.ledger
    await stream.lease(0)
    stream.gate.restore(before)
    lease = await stream.lease(0)
    roller.cancel()
    assert (lease.ordinals, lease.filtered) == ((1,), (0,))
