"""The stream: slots bound what is in flight, leases come in order, nothing is lost and nothing is trained twice."""

import asyncio

import pytest
from stream_examples import Both, group

from penstock.core.errors import StreamError
from penstock.stream.entry import Ticket
from penstock.stream.rules import Rules
from penstock.stream.stream import LearnerClient, Stream


def within(awaitable, seconds=0.02):
    return asyncio.wait_for(awaitable, seconds)


async def admit(stream):
    """The ordinal of one ticket."""
    (ticket,) = await within(stream.admit())
    assert ticket.attempt == 0
    return ticket.ordinal


async def put(stream, ordinal, version=0):
    return await stream.put(Ticket(ordinal), group(ordinal, version))


async def fill(stream, count, version=0):
    """Admit and deliver groups."""
    ordinals = [await admit(stream) for _ in range(count)]
    for ordinal in ordinals:
        assert await put(stream, ordinal, version)
    return ordinals


@pytest.mark.parametrize(("batch", "max_lag", "slots"), [(1, 0, 1), (4, 0, 4), (4, 1, 8), (2, 3, 8)])
async def test_admission_stops_at_the_slots(batch, max_lag, slots):
    stream = Both(Rules(batch, max_lag))
    assert [await admit(stream) for _ in range(slots)] == list(range(slots))
    with pytest.raises(TimeoutError):
        await admit(stream)


async def test_release_opens_the_slots_of_its_batch():
    stream = Both(Rules(2, max_lag=1))
    await fill(stream, 4)
    waiting = asyncio.create_task(stream.admit())
    await asyncio.sleep(0)
    assert not waiting.done()
    await stream.train(0)
    assert await within(waiting) == [Ticket(4, min_version=1)]
    assert await admit(stream) == 5
    with pytest.raises(TimeoutError):
        await admit(stream)


async def test_a_lease_waits_for_a_whole_batch():
    stream = Both(Rules(2))
    leasing = asyncio.create_task(stream.lease(0))
    await fill(stream, 1)
    await asyncio.sleep(0)
    assert not leasing.done()
    await fill(stream, 1)
    assert (await within(leasing)).ordinals == (0, 1)


async def test_a_straggler_is_waited_for_rather_than_overtaken_until_it_is_stale():
    """With one batch of lag: were group 1 trained before the slow group 0, then 0 would come two versions late."""

    stream = Both(Rules(1, max_lag=1))
    await stream.admit()
    await stream.admit()
    await put(stream, 1)
    leasing = asyncio.create_task(stream.lease(0))
    with pytest.raises(TimeoutError):
        await within(asyncio.shield(leasing))
    await put(stream, 0)
    assert (await within(leasing)).ordinals == (0,)


@pytest.mark.parametrize(
    ("drawn", "trained", "words"),
    [(3, 5, r"group test/0/0 is 2 versions old; max_lag=1 forbids training on it"), (1, 0, "-1 versions old")],
    ids=["too old", "from the future"],
)
async def test_a_group_of_another_age_is_refused(drawn, trained, words):
    stream = Both(Rules(1, max_lag=1))
    await stream.admit()
    await put(stream, 0, drawn)
    with pytest.raises(StreamError, match=words):
        await stream.lease(trained)


@pytest.mark.parametrize("lag", [0, 1, 2])
async def test_the_largest_lag_is_counted(lag):
    stream = Both(Rules(1, max_lag=2))
    await stream.admit()
    await put(stream, 0, 3)
    await stream.lease(3 + lag)
    assert stream.stats.largest_lag == lag


def test_a_group_that_was_not_admitted_is_refused():
    with pytest.raises(StreamError, match=r"group test/0/0 \(ordinal 0\) was not admitted"):
        Both(Rules(1)).gate.put("g", Ticket(0), group(0))


async def test_a_group_that_comes_twice_is_refused():
    stream = Both(Rules(2))
    await fill(stream, 1)
    with pytest.raises(StreamError, match="was delivered before"):
        await put(stream, 0)


@pytest.mark.parametrize("others", [0, 1])
async def test_a_lease_that_is_released_twice_is_refused(others):
    """Also while other batches hold slots, where the count of free slots would not tell."""

    stream = Both(Rules(1, max_lag=1))
    await fill(stream, 1 + others)
    lease = await stream.lease(0)
    stream.trained(lease)
    await stream.release(lease)
    with pytest.raises(StreamError, match="released twice"):
        await stream.release(lease)
    for _ in range(2 - others):
        await admit(stream)
    with pytest.raises(TimeoutError):
        await admit(stream)


class Impatient:
    """A clock on which every wait takes longer than its deadline."""

    def __init__(self):
        self.asked = []

    def now(self):
        return 0.0

    async def wait(self, what, seconds):
        self.asked.append(seconds)
        what.close()
        raise TimeoutError


async def test_a_learner_that_waits_too_long_names_the_rollout_and_what_is_in_flight():
    stream = Both(Rules(2), deadline=7.0, clock=Impatient())
    await stream.admit()
    await fill(stream, 1)
    with pytest.raises(StreamError, match=r"7 s for 2 groups from the rollout; 1 groups are ready, 1 in flight .*\[0\]"):
        await stream.lease(0)
    assert stream.stream.clock.asked == [7.0]


async def test_a_rollout_that_waits_too_long_names_the_learner():
    stream = Both(Rules(1), deadline=0.01)
    await stream.admit()
    with pytest.raises(StreamError, match="for a free slot from the learner to publish new weights"):
        await stream.admit()


async def test_a_learner_waits_on_while_tokens_are_generated():
    """An episode may take hours; what ends the wait is that nobody works any more."""
    tokens = iter([0.0, 5.0, 9.0, 9.0])
    clock = Impatient()

    stream = Stream(Rules(1), deadline=7.0, clock=clock, work=lambda: next(tokens))
    with pytest.raises(StreamError, match="waited 7 s for 1 groups"):
        await stream.lease(0)
    assert clock.asked == [7.0, 7.0, 7.0]


async def test_the_stream_works_on_after_a_deadline():
    stream = Both(Rules(1), deadline=0.01)
    with pytest.raises(StreamError):
        await stream.lease(0)
    await fill(stream, 1)
    assert (await stream.lease(0)).ordinals == (0,)


async def test_a_cancelled_wait_takes_no_slot():
    stream = Both(Rules(1))
    await fill(stream, 1)
    waiting = asyncio.create_task(stream.admit())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await stream.train(0)
    assert await admit(stream) == 1


@pytest.mark.parametrize("turns", range(5))
async def test_a_wait_that_is_cancelled_just_as_its_slot_opens_ends(turns):
    stream = Both(Rules(1))
    await fill(stream, 1)
    waiting = asyncio.create_task(stream.admit())
    await asyncio.sleep(0)
    await stream.train(0)
    for _ in range(turns):
        await asyncio.sleep(0)
    accepted = waiting.cancel()
    await asyncio.wait([waiting])
    assert accepted == waiting.cancelled()


async def test_restore_returns_untrained_leases_in_their_place():
    stream = Both(Rules(2, max_lag=1))
    await fill(stream, 4)
    await stream.train(0)
    kept = stream.learner.ledger
    await stream.lease(1)
    stream.gate.restore(kept)
    assert (await within(stream.lease(1))).ordinals == (2, 3)


async def test_a_resume_starts_exactly_the_untrained_ordinals_again():
    stream = Both(Rules(2, max_lag=1))
    await fill(stream, 4)
    stream.trained(await stream.lease(0))
    resumed = Both(stream.rules, kept=stream.learner.ledger)
    assert (await fill(resumed, 4, version=1), (await resumed.lease(1)).ordinals) == ([2, 3, 4, 5], (2, 3))


async def test_a_resume_leaves_out_what_was_trained_out_of_order():
    stream = Both(Rules(1, max_lag=1, on_stale="drop"))
    _, quick = await stream.admit(2)
    await stream.put(quick, group(1))
    stream.trained(await stream.lease(0))
    resumed = Both(stream.rules, kept=stream.learner.ledger)
    assert [await admit(resumed) for _ in range(2)] == [0, 2]


def test_the_state_is_plain_json():
    import json

    state = LearnerClient(Rules(2)).state()
    assert state.arrays == {}
    assert json.loads(json.dumps(state.values)) == state.values


async def test_stats_count_groups():
    stream = Both(Rules(2, max_lag=1))
    await fill(stream, 3)
    await stream.train(0)
    assert (stream.stats.admitted, stream.stats.delivered, stream.stats.trained) == (3, 3, 2)


async def test_a_worker_has_no_more_groups_in_flight_than_it_asked_for():
    stream = Both(Rules(4))
    first = await stream.as_owner("a").admit(most=4, max_in_flight=2)
    with pytest.raises(TimeoutError):
        await within(stream.as_owner("a").admit(most=4, max_in_flight=2))
    assert (len(first), len(await stream.as_owner("b").admit(most=4, max_in_flight=4))) == (2, 2)


async def test_a_request_that_waited_while_its_groups_ended_gets_all_that_opens():
    """Or the groups of one version would enter the engine in two steps, and processes would not do what one process does."""
    stream = Both(Rules(2))
    tickets = await stream.admit(most=2, max_in_flight=2)
    await stream.put(tickets[0], group(0))
    waiting = asyncio.create_task(stream.admit(most=2, max_in_flight=2))
    await asyncio.sleep(0)
    await stream.put(tickets[1], group(1))
    await stream.train(0)
    assert [ticket.ordinal for ticket in await within(waiting)] == [2, 3]


async def test_what_a_worker_had_in_flight_counts_no_more_when_it_is_gone():
    stream = Both(Rules(1, max_lag=0, on_stale="drop"))
    await stream.as_owner("a").admit(max_in_flight=1)
    await stream.as_owner("a").leave()
    assert len(await within(stream.as_owner("a").admit(max_in_flight=1))) == 1
